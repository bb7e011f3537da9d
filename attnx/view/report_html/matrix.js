// A matrix of queries and keys with its tokens along both sides.

const ROOM = 42;

// Which labels fit beside `size` pixels for `count` tokens: every n-th.
const every = (count, size) => Math.max(1, Math.ceil(count / Math.max(1, Math.floor(size / 13))));

function sideLabels(side, size, name, chosen) {
  const count = side.pieces.length, step = every(count, size), out = make("div", { class: `side ${name}`, "aria-hidden": "true" });
  for (let at = 0; at < count; at += step) {
    const label = make("span", { class: at === chosen ? "chosen" : side.special[at] ? "special" : null }, token(side.pieces[at]));
    label.style.setProperty("--p", `${(100 * (at + 0.5)) / count}%`);
    out.append(label);
  }
  return out;
}

// The scale of a stage: weights from 0, everything else round 0.
function stageScale(head, stage, clear) {
  const values = head.matrix(stage), [low, high] = extent(values, clear);
  if (stage === "weights") {
    const top = high || 1;
    return { ramp: ramps().one, place: (value) => spread(value / top, state.scale), ends: ["0", weight(high)] };
  }
  const reach = Math.max(Math.abs(low), Math.abs(high)) || 1;
  return { ramp: ramps().both, place: (value) => 0.5 + value / reach / 2, ends: [figure(-reach, 1), figure(reach, 1)] };
}

function clearCells(head, stage) {
  const special = keysOf(state.site).special, late = stage === "masked" || stage === "weights";
  const { hiddenCells, keys } = head, muted = state.mute;
  if (!muted && !(late && hiddenCells)) return null;
  return (at) => (late && hiddenCells?.[at]) || (muted && special[at % keys]);
}

function matrixCanvas(head, stage, label) {
  const canvas = make("canvas", { role: "img", "aria-label": label }), clear = clearCells(head, stage);
  const scale = stageScale(head, stage, clear);
  heat(canvas, head.matrix(stage), head.queries, head.keys, scale.ramp, scale.place, clear);
  canvas.classList.toggle("smooth", Math.max(head.queries, head.keys) > 250);
  const frame = make("div", { class: "frame hatch" }, canvas, make("div", { class: "chosen-row" }));
  frame.style.setProperty("--row", `${(100 * state.query) / head.queries}%`);
  frame.style.setProperty("--tall", `${100 / head.queries}%`);
  const cellOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return [
      Math.min(head.queries - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * head.queries))),
      Math.min(head.keys - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * head.keys))),
    ];
  };
  const { site } = state;
  frame.addEventListener("pointermove", (event) => {
    const [at, key] = cellOf(event), row = head.row(at);
    const late = stage === "masked" || stage === "weights";
    const said = late && row.hidden?.[key] ? "hidden by the mask" : `${stage} ${stage === "weights" ? weight(row[stage][key]) : figure(row[stage][key], 3)}`;
    tipAt(event, make("div", {}, "query ", token(queriesOf(site).pieces[at]), ` @${at} → key `, token(keysOf(site).pieces[key]), ` @${key}`), make("b", {}, said));
  });
  frame.addEventListener("pointerleave", tipAway);
  frame.addEventListener("click", (event) => choose({ query: cellOf(event)[0] }));
  return { frame, scale, clear };
}

function showMatrix() {
  const panel = byId("matrix");
  if (panel.hidden) return;
  const head = shown, label = `Weights of ${labelOf(state.site, state.head)}: queries downwards, keys across`;
  const { frame, scale } = matrixCanvas(head, "weights", label);
  const wide = Math.min(panel.clientWidth - 130, 620), high = Math.min(620, wide * Math.max(0.15, head.queries / head.keys));
  const plot = make(
    "div", { class: "plot" },
    make("span", { class: "axis-key" }, "key →"), sideLabels(keysOf(state.site), wide, "top", -1),
    make("span", { class: "axis-query" }, "query ↓"), sideLabels(queriesOf(state.site), high, "left", state.query), frame,
  );
  plot.style.setProperty("--wide", `${wide}px`);
  plot.style.setProperty("--high", `${high}px`);
  panel.replaceChildren(plot, make("p", { class: "said" }, `weights, ${SCALE_SAID[state.scale]} `,
    legend(scale.ramp, scale.ends, { hidden: Boolean(head.hiddenCells), muted: state.mute })));
}
