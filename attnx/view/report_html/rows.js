// The chosen query's row in every head.

let rowsRun = 0;

// Every head that has this query, drawn once all are unpacked; a newer choice ends an older one.
async function showRows() {
  const run = ++rowsRun, at = state.query, side = data.sites[state.site].queries, keySide = data.sites[state.site].keys;
  const pieces = data.sides[keySide].pieces, special = data.sides[keySide].special;
  const lines = [];
  for (const [place, site] of data.sites.entries()) {
    if (site.queries !== side || site.keys !== keySide) continue;
    for (let head = 0; head < site.heads; head++) lines.push({ place, head });
  }
  byId("across-name").replaceChildren("What ", token(data.sides[side].pieces[at]), ` @${at} looks at, in every head`);
  for (const line of lines) {
    const row = (await unpackRow(line.place, line.head)).row(at);
    if (run !== rowsRun) return;
    line.weights = row.weights;
    line.hidden = row.hidden;
  }
  const count = pieces.length, values = new Float32Array(lines.length * count);
  lines.forEach((line, n) => values.set(line.weights, n * count));
  const clear = (n) => Boolean(lines[Math.floor(n / count)].hidden?.[n % count]) || (state.mute && special[n % count]);
  const canvas = make("canvas", { role: "img", "aria-label": "Weights from the chosen query: heads downwards, keys across" });
  heat(canvas, values, lines.length, count, ramps().one, (value) => spread(value, state.scale), clear);
  const frame = make("div", { class: "frame hatch" }, canvas, make("div", { class: "chosen-row" }));
  const chosen = lines.findIndex((line) => line.place === state.site && line.head === state.head);
  frame.style.setProperty("--row", `${(100 * chosen) / lines.length}%`);
  frame.style.setProperty("--tall", `${100 / lines.length}%`);
  const root = byId("rows"), wide = Math.max(220, root.clientWidth - 120), high = Math.max(140, Math.min(560, lines.length * 8));
  const left = make("div", { class: "side left", "aria-hidden": "true" });
  lines.forEach((line, n) => {
    if (line.head) return;
    const label = make("span", { class: "layer" }, data.sites[line.place].label);
    label.style.setProperty("--p", `${(100 * (n + 0.5)) / lines.length}%`);
    left.append(label);
  });
  const plot = make("div", { class: "plot" }, make("span", { class: "axis-key" }, "key →"),
    sideLabels(data.sides[keySide], wide, "top", -1), make("span", { class: "axis-query" }, "head ↓"), left, frame);
  plot.style.setProperty("--wide", `${wide}px`);
  plot.style.setProperty("--high", `${high}px`);
  const cellOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return [
      Math.min(lines.length - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * lines.length))),
      Math.min(count - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * count))),
    ];
  };
  frame.addEventListener("pointermove", (event) => {
    const [n, key] = cellOf(event), { place, head, weights, hidden } = lines[n];
    tipAt(event, make("div", {}, `${labelOf(place, head)} → key `, token(pieces[key]), ` @${key}`),
      make("b", {}, hidden?.[key] ? "hidden by the mask" : `weight ${weight(weights[key])}`));
  });
  frame.addEventListener("pointerleave", tipAway);
  frame.addEventListener("click", (event) => {
    const { place, head } = lines[cellOf(event)[0]];
    choose({ site: place, head });
  });
  root.replaceChildren(plot, topHeads(lines, pieces, special));
  byId("rows-said").replaceChildren(`weights on one scale for all heads, ${SCALE_SAID[state.scale]} `, legend(ramps().one, ["0", "1"], {
    hidden: lines.some((line) => line.hidden), muted: state.mute,
  }));
}

// Rows of all heads are wanted one at a time: unpacked without pushing the heads that are looked at out of memory.
const rowHeads = new Map();
async function unpackRow(place, head) {
  const name = `${place}.${head}`, kept = rowHeads.get(name)?.deref() ?? (open.has(name) ? await open.get(name) : null);
  if (kept) return kept;
  const found = await unpack(place, head);
  rowHeads.set(name, new WeakRef(found));
  return found;
}

function topHeads(lines, pieces, special) {
  const best = lines.map(({ place, head, weights, hidden }) => {
    let key = -1;
    for (let at = 0; at < weights.length; at++) {
      if (!special[at] && at !== state.query && !hidden?.[at] && (key < 0 || weights[at] > weights[key])) key = at;
    }
    return { place, head, key, value: key < 0 ? 0 : weights[key] };
  }).filter(({ value }) => value > 0).sort((a, b) => b.value - a.value).slice(0, 8);
  const list = make("ol", { class: "best", "aria-label": "Heads with the largest weight on another word" });
  for (const { place, head, key, value } of best) {
    const button = make("button", { type: "button" }, make("span", {}, labelOf(place, head)), " → ", token(pieces[key]), " ", make("b", {}, figure(value)));
    button.addEventListener("click", () => choose({ site: place, head }));
    list.append(make("li", {}, button));
  }
  return list;
}
