// Which candidate every head and layer points at from a pronoun, beside what place and chance alone would say.

const letter = (at) => (at < 26 ? String.fromCharCode(65 + at) : `A${at - 25}`);

function startCoreference() {
  if (!data.references.length) return;
  byId("coreference").hidden = false;
  const select = byId("pronoun");
  data.references.forEach((one, at) => select.append(make("option", { value: at }, `${one.pronoun} @${one.query}`)));
  byId("pronoun-label").hidden = data.references.length < 2;
  select.addEventListener("change", () => {
    const { query, sites } = data.references[select.value];
    choose({ query, site: sites.includes(state.site) ? state.site : sites[0] });
    showCoreference();
  });
  showCoreference();
}

// The candidates that any line names with a share that can be seen; the others together are "other".
function namedCandidates(one) {
  const best = one.candidates.map((_, at) => Math.max(...[...one.verdicts, ...one.layers, ...one.baselines].map((line) => line.shares[at] ?? 0)));
  return new Set(best.map((value, at) => [value, at]).sort((a, b) => b[0] - a[0]).slice(0, sorts().length - 1).map(([, at]) => at).sort((a, b) => a - b));
}

function showCoreference() {
  if (!data.references.length) return;
  const one = data.references[byId("pronoun").value], colours = sorts(), named = [...namedCandidates(one)];
  const colourOf = (at) => (named.includes(at) ? colours[named.indexOf(at)] : colours[colours.length - 1]);
  const nameOf = (at) => (at == null ? "(level)" : one.candidates[at].text);
  const list = make("p", { class: "candidates" }, make("b", {}, token(one.pronoun)), ` @${one.query} → `);
  for (const at of named) {
    const mark = make("span", { class: "sort" }, letter(at));
    mark.style.background = colourOf(at);
    list.append(make("span", { class: "candidate" }, mark, token(one.candidates[at].text), make("small", {}, ` @${one.candidates[at].pieces[0]}`)));
  }
  const rest = one.candidates.length - named.length;
  if (rest > 0) list.append(make("span", { class: "candidate" }, make("small", {}, `and ${rest} with smaller shares, in grey`)));
  const line = (verdict, kind) => {
    const bar = make("span", { class: "shares", role: "img", "aria-label": verdict.shares.map((share, at) => `${nameOf(at)} ${figure(share)}`).join(", ") });
    const order = [...named, ...verdict.shares.map((_, at) => at).filter((at) => !named.includes(at))];
    for (const at of order) {
      const share = verdict.shares[at];
      if (!(share > 0.001)) continue;
      const part = make("span", {}, share > 0.12 && named.includes(at) ? letter(at) : "");
      part.style.width = `${100 * share}%`;
      part.style.background = colourOf(at);
      part.title = `${nameOf(at)} ${figure(share)}`;
      bar.append(part);
    }
    return make("tr", { class: kind }, make("th", { scope: "row" }, verdict.where && kind === "layer" ? verdict.where : verdict.method,
      kind !== "layer" && verdict.where ? make("small", {}, ` ${verdict.where}`) : ""),
      make("td", {}, token(nameOf(verdict.candidate))), make("td", { class: "wide" }, bar), make("td", { class: "right" }, figure(verdict.lead)));
  };
  const body = make("tbody", {}, ...one.verdicts.map((v) => line(v, "verdict")),
    make("tr", { class: "between" }, make("th", { colspan: 4, scope: "rowgroup" }, "mean of the heads of each layer")), ...one.layers.map((v) => line(v, "layer")),
    make("tr", { class: "between" }, make("th", { colspan: 4, scope: "rowgroup" }, "baselines: what place and chance alone would say")), ...one.baselines.map((v) => line(v, "baseline")));
  const table = make("table", { class: "verdicts" }, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "read by"),
    make("th", { scope: "col" }, "points at"), make("th", { scope: "col" }, "share of each candidate"), make("th", { scope: "col", class: "right" }, "lead"))), body);
  byId("verdicts").replaceChildren(list, make("div", { class: "pair" }, make("div", { class: "across" }, table),
    make("div", {}, make("h3", {}, "head by head"), pointers(one, named, colourOf))), make("p", { class: "said" }, "A letter is the candidate with the largest share, its strength that share; a dot where no candidate has weight, … one that has no colour here. ", ...one.notes.map((note) => `${note}. `), one.source));
}

// Layers x heads: which candidate each points at.
function pointers(one, named, colourOf) {
  const table = make("table", { class: "cells", "aria-label": "Candidate that each head points at" });
  one.sites.forEach((place, row) => {
    const line = make("tr", {}, make("th", { scope: "row" }, data.sites[place].label));
    one.shares[row].forEach((shares, head) => {
      if (head >= data.sites[place].heads) return;
      let best = -1;
      shares.forEach((share, at) => { if (share !== null && (best < 0 || share > shares[best])) best = at; });
      const said = best < 0 ? "no weight on any candidate" : `${one.candidates[best].text}, share ${figure(shares[best])}, weight ${weight(one.weights[row][head][best])}`;
      const button = make("button", { type: "button", title: `${labelOf(place, head)}: ${said}`, "aria-label": `${labelOf(place, head)}: ${said}` }, best < 0 ? "·" : named.includes(best) ? letter(best) : "…");
      if (best >= 0) {
        button.style.setProperty("--sort", colourOf(best));
        button.style.setProperty("--w", (0.15 + 0.85 * shares[best] ** 2).toFixed(3));
        button.classList.toggle("strong", shares[best] > 0.75);
      }
      button.addEventListener("click", () => choose({ site: place, head, query: one.query }));
      line.append(make("td", {}, button));
    });
    table.append(line);
  });
  return make("div", { class: "across" }, table);
}
