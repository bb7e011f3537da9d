// The stages of the chosen head side by side, and the chosen query's row through them.

const STAGE_SAID = {
  scores: ["scores", "q · k, unscaled"],
  scaled: ["scaled", "scores × scale"],
  capped: ["capped", "after the softcap"],
  masked: ["masked", "mask and bias added"],
  weights: ["weights", "after the softmax"],
};
const FEW = 16;
let allKeys = false;

function showMaps() {
  const head = shown, name = labelOf(state.site, state.head);
  byId("stages-name").textContent = `Stages of ${name}`;
  const maps = head.stages.map((stage) => {
    const { frame, scale } = matrixCanvas(head, stage, `${stage} of ${name}: queries downwards, keys across`);
    return make("figure", { class: "stage" },
      make("figcaption", {}, make("b", {}, STAGE_SAID[stage][0]), ` ${STAGE_SAID[stage][1]}`, make("span", { class: "way-round" }, "query ↓ key →")), frame,
      legend(scale.ramp, scale.ends, { hidden: Boolean(head.hiddenCells) && (stage === "masked" || stage === "weights") }));
  });
  byId("stage-maps").replaceChildren(...maps);
  if (!head.early) {
    byId("stage-maps").append(make("p", { class: "said" },
      "The stages before these are not shown: at this site they do not lead to the model's weights, or were not to be had."));
  }
}

// What a row says: entropy in nats, the largest weight, and how much of a gradient passes (1 - the sum of squares).
function summary(weights) {
  let total = 0, entropy = 0, largest = 0, squares = 0;
  for (const value of weights) total += value;
  for (const value of weights) {
    const part = total > 0 ? value / total : 0;
    if (part > 0) entropy -= part * Math.log(part);
    if (value > largest) largest = value;
    squares += value * (1 - value);
  }
  return { entropy, largest, gradient: squares };
}

function barCell(value, most, kind) {
  const bar = make("span", { class: `mark ${kind}` });
  bar.style.setProperty("--w", most > 0 ? Math.max(0, value) / most : 0);
  return make("td", { class: "meter" }, bar, make("span", { class: "number" }, weight(value)));
}

function wayCard(title, said, weights, kind) {
  const { entropy, largest, gradient } = summary(weights);
  return make("div", { class: `way ${kind}` }, make("b", {}, title), make("small", {}, said),
    make("dl", {}, make("dt", {}, "entropy"), make("dd", {}, `${figure(entropy, 3)} nats`),
      make("dt", {}, "largest"), make("dd", {}, figure(largest, 3)),
      make("dt", {}, "gradient 1−Σa²"), make("dd", {}, figure(gradient, 3))));
}

function scaleSaid(head) {
  const { scale, site } = head;
  if (scale == null) return "its scale";
  if (site.size && Math.abs(scale * Math.sqrt(site.size) - 1) < 1e-3) return `1/√${site.size}`;
  return String(Number(scale.toPrecision(4))).replace("-", "−");
}

function showRow() {
  const head = shown, at = state.query, row = head.row(at), pieces = keysOf(state.site).pieces;
  byId("row-name").replaceChildren("query ", token(queriesOf(state.site).pieces[at]), ` @${at}: `,
    head.early ? "the softmax before and after scaling" : "its weights");
  const ways = byId("ways");
  ways.replaceChildren();
  if (head.early) {
    ways.append(wayCard("without scaling", "softmax(q·k), mask on", row.unscaled, "before"),
      wayCard("with scaling", `softmax(q·k × ${scaleSaid(head)}), mask on`, row.weights, "after"));
  }
  const order = Array.from(pieces, (_, key) => key);
  const rank = (key) => Math.max(row.weights[key], row.unscaled?.[key] ?? 0);
  const kept = new Set(allKeys ? order : [...order].sort((a, b) => rank(b) - rank(a) || a - b).slice(0, FEW));
  const columns = head.stages.filter((stage) => stage !== "weights");
  const names = make("tr", {}, make("th", { scope: "col", class: "right" }, "#"), make("th", { scope: "col" }, "key"));
  for (const stage of columns) names.append(make("th", { scope: "col", class: "right" }, stage === "scores" ? "score q·k" : stage));
  if (head.early) names.append(make("th", { scope: "col" }, "softmax without scaling"));
  names.append(make("th", { scope: "col" }, head.early ? "weight: softmax with scaling" : "weight"));
  let most = 0;
  for (const key of order) most = Math.max(most, rank(key));
  const body = make("tbody");
  for (const key of order.filter((one) => kept.has(one))) {
    const hiddenHere = Boolean(row.hidden?.[key]);
    const line = make("tr", { class: hiddenHere ? "gone" : null, "data-key": key },
      make("td", { class: "right at" }, String(key)), make("th", { scope: "row" }, token(pieces[key])));
    for (const stage of columns) {
      line.append(make("td", { class: "right" }, stage === "masked" && hiddenHere ? "hidden" : figure(row[stage][key])));
    }
    if (head.early) line.append(barCell(row.unscaled[key], most, "before"));
    line.append(barCell(row.weights[key], most, "after"));
    body.append(line);
  }
  byId("row").replaceChildren(make("caption", { class: "hidden" }, `The stages of query ${at} by key`), make("thead", {}, names), body);
  const said = byId("row-said");
  said.replaceChildren();
  if (pieces.length > FEW) {
    const more = make("button", { type: "button" }, allKeys ? `Only the ${FEW} largest` : `All ${pieces.length} keys`);
    more.addEventListener("click", () => { allKeys = !allKeys; showRow(); });
    said.append(more, allKeys ? " " : ` ${pieces.length - FEW} keys are not listed; none has a larger weight in either softmax. `);
  }
  said.append(sourceSaid(head));
}

function sourceSaid(head) {
  const { site } = head, out = [];
  if (head.early && head.scale === 1) out.push("this model does not scale, so both ways are the same");
  else if (site.place && head.early) out.push(`scale: ${scaleSaid(head)}, ${site.place}`);
  if (site.added) out.push(`added: ${site.added}`);
  if (head.sink != null) out.push("an attention sink takes part of each row, so rows sum to less than 1");
  out.push(...site.notes);
  return out.join("; ");
}
