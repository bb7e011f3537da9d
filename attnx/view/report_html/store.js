// What the page holds: the data, the arrays unpacked when they are needed, and every stage of a head rebuilt from them.

const data = JSON.parse(document.getElementById("data").textContent);
const MISSING = -32768, ROOTS = 254, KEPT = 64 << 20;
const unpacked = new Map();
let unpackedSize = 0;

function base64(text) {
  const letters = atob(text), out = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) out[at] = letters.charCodeAt(at);
  return out;
}

async function stream(bytes) {
  const through = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(through).arrayBuffer());
}

// The bytes of a blob. The oldest are forgotten once they are too many to keep.
async function bytesOf(blob) {
  if (unpacked.has(blob)) return unpacked.get(blob);
  const packed = base64(data.blobs[blob]);
  let bytes;
  try {
    bytes = typeof DecompressionStream === "function" ? await stream(packed) : inflate(packed);
  } catch {
    bytes = inflate(packed);
  }
  if (!unpacked.has(blob)) {
    unpacked.set(blob, bytes);
    unpackedSize += bytes.length;
    for (const [old, held] of unpacked) {
      if (unpackedSize <= KEPT || old === blob) break;
      unpacked.delete(old);
      unpackedSize -= held.length;
    }
  }
  return bytes;
}

// Whole numbers times a step: low bytes first, then high bytes.
async function numbersOf([blob, step]) {
  const bytes = await bytesOf(blob), count = bytes.length >> 1, out = new Float32Array(count);
  for (let at = 0; at < count; at++) {
    const code = ((bytes[at] | (bytes[at + count] << 8)) << 16) >> 16;
    out[at] = code === MISSING ? NaN : code * step;
  }
  return out;
}

async function rootsOf([blob, top]) {
  const bytes = await bytesOf(blob);
  return Float32Array.from(bytes, (code) => (code > ROOTS ? NaN : (code / ROOTS) ** 2 * top));
}

async function hiddenOf(blob, count) {
  const bytes = await bytesOf(blob), out = new Uint8Array(count);
  for (let at = 0; at < count; at++) out[at] = (bytes[at >> 3] >> (7 - (at & 7))) & 1;
  return out;
}

function softmax(values, hidden, sink) {
  const out = new Float32Array(values.length);
  let top = sink ?? -Infinity, total = 0;
  for (let at = 0; at < values.length; at++) if (!hidden?.[at] && !(values[at] <= top)) top = values[at];
  if (top === -Infinity) return out;
  for (let at = 0; at < values.length; at++) if (!hidden?.[at]) total += out[at] = Math.exp(values[at] - top);
  if (sink != null) total += Math.exp(sink - top);
  for (let at = 0; at < values.length; at++) out[at] /= total;
  return out;
}

// One head, unpacked. A stage that cannot be rebuilt is absent from `stages`.
class Head {
  constructor(site, head, parts) {
    Object.assign(this, parts);
    this.site = site;
    this.queries = data.sides[site.queries].pieces.length;
    this.keys = data.sides[site.keys].pieces.length;
    this.scale = Array.isArray(site.scale) ? site.scale[head] : site.scale;
    this.sink = site.sink?.[head] ?? null;
    this.early = site.base === "qk" || site.base === "scores";
    this.stages = this.early
      ? ["scores", "scaled", ...(site.softcap ? ["capped"] : []), "masked", "weights"]
      : site.base === "masked" ? ["masked", "weights"] : ["weights"];
    this.rows = new Map();
    this.whole = new Map();
  }

  capped(values) {
    const cap = this.site.softcap;
    return cap ? values.map((value) => cap * Math.tanh(value / cap)) : values;
  }

  plus(values, at) {
    return this.bias ? values.map((value, key) => value + this.bias[at * this.keys + key]) : values;
  }

  // Every stage of one query's row, Float32Array [keys] each; hidden is null where nothing is.
  row(at) {
    if (this.rows.has(at)) return this.rows.get(at);
    const span = [at * this.keys, (at + 1) * this.keys], out = {};
    out.hidden = this.hiddenCells?.subarray(...span) ?? null;
    if (this.early) {
      out.scores = this.scoresOf(at);
      out.scaled = out.scores.map((value) => value * this.scale);
      out.capped = this.capped(out.scaled);
      out.masked = this.plus(out.capped, at);
      out.unscaled = softmax(this.plus(this.capped(out.scores), at), out.hidden, this.sink);
      out.weights = softmax(out.masked, out.hidden, this.sink);
    } else if (this.site.base === "masked") {
      out.masked = this.values.subarray(...span);
      out.weights = softmax(out.masked, out.hidden, this.sink);
    } else {
      out.weights = this.values.subarray(...span);
    }
    if (this.rows.size > 600) this.rows.clear();
    this.rows.set(at, out);
    return out;
  }

  scoresOf(at) {
    if (this.values) return this.values.subarray(at * this.keys, (at + 1) * this.keys);
    const size = this.query.length / this.queries, out = new Float32Array(this.keys);
    const query = this.query.subarray(at * size, (at + 1) * size);
    for (let key = 0, place = 0; key < this.keys; key++) {
      let sum = 0;
      for (let d = 0; d < size; d++) sum += query[d] * this.key[place++];
      out[key] = sum;
    }
    return out;
  }

  // A stage as one Float32Array [queries x keys].
  matrix(stage) {
    if (!this.whole.has(stage)) {
      const out = new Float32Array(this.queries * this.keys);
      for (let at = 0; at < this.queries; at++) out.set(this.row(at)[stage], at * this.keys);
      this.whole.set(stage, out);
    }
    return this.whole.get(stage);
  }
}

async function unpack(place, head) {
  const site = data.sites[place], parts = {};
  const queries = data.sides[site.queries].pieces.length, keys = data.sides[site.keys].pieces.length;
  if (site.base === "qk") {
    parts.query = await numbersOf(site.query[head]);
    parts.key = await numbersOf(site.key[Math.floor((head * site.kvHeads) / site.heads)]);
  } else if (site.base === "roots") {
    parts.values = await rootsOf(site.weights[head]);
  } else {
    parts.values = await numbersOf(site[site.base][head]);
  }
  if (site.bias?.[head]) parts.bias = await numbersOf(site.bias[head]);
  if (site.hidden?.[head] != null) parts.hiddenCells = await hiddenOf(site.hidden[head], queries * keys);
  return new Head(site, head, parts);
}

const MOST_HEADS = 8;
const open = new Map();

// A head, ready to be looked at; the last few stay open.
function headAt(place, head) {
  const name = `${place}.${head}`;
  const found = open.get(name) ?? unpack(place, head);
  open.delete(name);
  open.set(name, found);
  if (open.size > MOST_HEADS) open.delete(open.keys().next().value);
  return found;
}

const labelOf = (place, head) => `${data.sites[place].label} H${head}`;
const queriesOf = (place) => data.sides[data.sites[place].queries];
const keysOf = (place) => data.sides[data.sites[place].keys];
