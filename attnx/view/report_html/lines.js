// Two columns of tokens joined by lines: query on the left, key on the right.

const LINE = 20, FAINT = 0.04, EACH = 3;
let hovered = null;

function fillTokens(list, side, name) {
  list.replaceChildren(...side.pieces.map((piece, at) => make(
    "li", { role: "option", id: `${name}-${at}`, "data-at": at, class: side.special[at] ? "special" : null },
    make("span", { class: "at", "aria-hidden": "true" }, String(at)), token(piece), make("span", { class: "share" }),
  )));
}

// Only what changes is written: a long text has a thousand elements here.
function showLines() {
  const { site, query } = state, head = shown;
  const queries = byId("queries"), keys = byId("keys");
  if (queries.dataset.side !== String(data.sites[site].queries)) {
    fillTokens(queries, queriesOf(site), "q");
    queries.dataset.side = data.sites[site].queries;
  }
  if (keys.dataset.side !== String(data.sites[site].keys)) {
    fillTokens(keys, keysOf(site), "k");
    keys.dataset.side = data.sites[site].keys;
  }
  paintLines();
  const said = [`Lines: weights from ${FAINT} up, at most ${EACH} for each query; all from 0.005 up of the chosen one, thicker by weight. `];
  if (head.queries > 40) said.push("Scroll to move both columns. ");
  byId("lines-said").textContent = said.join("");
  queries.setAttribute("aria-activedescendant", `q-${query}`);
}

// The query that is drawn: under the pointer, else the chosen one. A key under the pointer shows who looks at it.
function looked() {
  if (hovered?.side === "keys") return { key: hovered.at };
  return { query: hovered?.side === "queries" ? hovered.at : state.query };
}

function paintTokens() {
  const head = shown, { query, key } = looked(), keys = byId("keys").children, queries = byId("queries").children;
  const special = keysOf(state.site).special, row = query === undefined ? null : head.row(query);
  for (let at = 0; at < keys.length; at++) {
    const value = row && !(state.mute && special[at]) ? row.weights[at] : 0;
    const hiddenHere = Boolean(row?.hidden?.[at]);
    paintToken(keys[at], value, at === key, hiddenHere);
  }
  for (let at = 0; at < queries.length; at++) {
    paintToken(queries[at], key === undefined ? 0 : head.row(at).weights[key], at === query, false);
    const chosen = at === state.query;
    if ((queries[at].getAttribute("aria-selected") === "true") !== chosen) queries[at].setAttribute("aria-selected", chosen);
  }
}

function paintToken(item, value, active, hiddenHere) {
  const share = hiddenHere ? "hidden" : value >= 0.005 ? figure(value) : "";
  const last = item.lastChild;
  if (last.textContent !== share) last.textContent = share;
  const strength = value >= 0.005 ? (0.08 + 0.82 * Math.sqrt(value)).toFixed(3) : "0";
  if (item.style.getPropertyValue("--w") !== strength) item.style.setProperty("--w", strength);
  item.classList.toggle("active", active);
  item.classList.toggle("strong", value > 0.45);
}

function paintLines() {
  if (!shown || byId("lines").hidden) return;
  paintTokens();
  const scroll = byId("lines-scroll"), canvas = byId("lines-canvas"), dense = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = Math.min(scroll.clientHeight, scroll.scrollHeight);
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  const context = canvas.getContext("2d"), top = scroll.scrollTop, style = getComputedStyle(document.documentElement);
  context.scale(dense, dense);
  context.lineCap = "round";
  const y = (at) => at * LINE + LINE / 2 - top;
  const stroke = (from, to, value, colour, alpha, wide) => {
    if (Math.max(from, to) < -LINE || Math.min(from, to) > height + LINE) return;
    context.globalAlpha = alpha;
    context.lineWidth = wide;
    context.strokeStyle = colour;
    context.beginPath();
    context.moveTo(0, from);
    context.bezierCurveTo(width * 0.4, from, width * 0.6, to, width, to);
    context.stroke();
  };
  const special = keysOf(state.site).special, { query, key } = looked();
  const faint = style.getPropertyValue("--line").trim(), strong = style.getPropertyValue("--accent").trim();
  for (const [from, to, value] of strongest(shown, special)) {
    if (from !== query && to !== key) stroke(y(from), y(to), value, faint, 0.1 + 0.4 * value, 0.75 + 1.5 * value);
  }
  if (query !== undefined) {
    const { weights, hidden } = shown.row(query);
    for (let at = 0; at < weights.length; at++) {
      if (weights[at] >= 0.005 && !hidden?.[at] && !(state.mute && special[at])) {
        stroke(y(query), y(at), weights[at], strong, Math.min(1, 0.25 + 0.85 * weights[at]), 1 + 6 * weights[at]);
      }
    }
  } else {
    for (let at = 0; at < shown.queries; at++) {
      const value = shown.row(at).weights[key];
      if (value >= 0.005) stroke(y(at), y(key), value, strong, Math.min(1, 0.25 + 0.85 * value), 1 + 6 * value);
    }
  }
}

// The few largest weights of every query, [query, key, weight]; kept with the head.
function strongest(head, special) {
  const name = state.mute ? "muted" : "all";
  head.strongest ??= {};
  if (head.strongest[name]) return head.strongest[name];
  const out = [];
  for (let at = 0; at < head.queries; at++) {
    const { weights } = head.row(at), best = [];
    for (let key = 0; key < weights.length; key++) {
      if (weights[key] < FAINT || (state.mute && special[key])) continue;
      best.push([at, key, weights[key]]);
      if (best.length > EACH) best.sort((a, b) => b[2] - a[2]).pop();
    }
    out.push(...best);
  }
  return (head.strongest[name] = out);
}

let pending = false;
function laterLines() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; paintLines(); });
}

function intoView(list, at) {
  const scroll = byId("lines-scroll"), y = at * LINE;
  if (y < scroll.scrollTop + LINE) scroll.scrollTop = Math.max(0, y - 2 * LINE);
  else if (y > scroll.scrollTop + scroll.clientHeight - 2 * LINE) scroll.scrollTop = y - scroll.clientHeight + 3 * LINE;
}

function startLines() {
  const scroll = byId("lines-scroll");
  scroll.addEventListener("scroll", laterLines, { passive: true });
  new ResizeObserver(laterLines).observe(scroll);
  for (const side of ["queries", "keys"]) {
    const list = byId(side);
    list.addEventListener("pointermove", (event) => {
      const item = event.target.closest("li"), at = item ? Number(item.dataset.at) : null;
      if (at === null || (hovered?.side === side && hovered.at === at)) return;
      hovered = { side, at };
      laterLines();
    });
    list.addEventListener("pointerleave", () => { hovered = null; laterLines(); });
    list.addEventListener("click", (event) => {
      const item = event.target.closest("li");
      if (item && side === "queries") choose({ query: Number(item.dataset.at) });
    });
    list.addEventListener("blur", () => { if (side === "keys") { hovered = null; laterLines(); } });
    list.addEventListener("keydown", (event) => {
      const last = list.children.length - 1;
      const now = side === "queries" ? state.query : hovered?.side === "keys" ? hovered.at : 0;
      const moves = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + 10, PageUp: now - 10, Home: 0, End: last };
      if (!(event.key in moves)) return;
      event.preventDefault();
      const at = Math.max(0, Math.min(last, moves[event.key]));
      intoView(list, at);
      if (side === "queries") choose({ query: at });
      else {
        hovered = { side, at };
        list.setAttribute("aria-activedescendant", `k-${at}`);
        laterLines();
      }
    });
  }
}
