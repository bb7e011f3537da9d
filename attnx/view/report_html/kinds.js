// What each head does: its kind, or any measure of it, by layer and head.

const SHORT = { "previous-token": "prev", "next-token": "next", induction: "induc", punctuation: "punct", mixed: "·" };

// What a head does; of a sink also what it does with the rest of its weight.
const kindOf = (site, head) => [data.kinds[site]?.[head], data.restKinds[site]?.[head]].filter(Boolean).join(", ");

function startKinds() {
  if (!data.measures.length) return;
  byId("kinds").hidden = false;
  const select = byId("measure");
  if (data.kinds.length) select.append(make("option", { value: "" }, "kind of head"));
  data.measures.forEach((measure, at) => select.append(make("option", { value: at }, measure.unit ? `${measure.name} (${measure.unit})` : measure.name)));
  select.addEventListener("change", showKinds);
  roving(byId("kind-table"), (row, column) => byId("kind-table").querySelector(`[data-r="${row}"][data-c="${column}"]`),
    () => [data.sites.length, Math.max(...data.sites.map((site) => site.heads))]);
  showKinds();
}

function showKinds() {
  if (!data.measures.length) return;
  const chosen = byId("measure").value, measure = chosen === "" ? null : data.measures[chosen];
  const kinds = [...new Set(data.kinds.flat())].filter((kind) => kind && kind !== "mixed").sort();
  const flat = measure ? measure.values.flat().filter((value) => value !== null) : [];
  const low = measure ? measure.bounds[0] ?? Math.min(...flat) : 0, high = measure ? measure.bounds[1] ?? Math.max(...flat) : 1;
  const table = byId("kind-table"), widest = Math.max(...data.sites.map((site) => site.heads));
  const names = make("tr", {}, make("td"));
  for (let head = 0; head < widest; head++) names.append(make("th", { scope: "col" }, `H${head}`));
  table.className = "cells";
  table.replaceChildren(make("thead", {}, names));
  data.sites.forEach((site, place) => {
    const line = make("tr", {}, make("th", { scope: "row" }, site.label));
    for (let head = 0; head < site.heads; head++) {
      const kind = data.kinds[place]?.[head] ?? "", value = measure?.values[place][head] ?? null;
      const rest = data.restKinds[place]?.[head] ?? "", both = kindOf(place, head);
      const said = measure ? figure(value) : rest ? `${SHORT[rest] ?? rest}*` : SHORT[kind] ?? kind;
      const here = place === state.site && head === state.head;
      const button = make("button", { type: "button", "data-r": place, "data-c": head, tabindex: here ? "0" : "-1", "aria-current": here ? "true" : null,
        "aria-label": `${labelOf(place, head)}: ${measure ? `${measure.name} ${figure(value)}` : both}` }, said || "–");
      button.title = `${labelOf(place, head)} · ${measure ? `${measure.name} ${figure(value, 4)}` : both}`;
      if (measure && value !== null) {
        const part = high > low ? (value - low) / (high - low) : 0;
        button.style.background = css(ramps().one, part);
        button.style.color = inkOn(ramps().one, part);
      } else if (!measure && kinds.includes(kind)) {
        button.style.setProperty("--sort", sorts()[kinds.indexOf(kind) % sorts().length]);
        button.style.setProperty("--w", "0.3");
      }
      button.addEventListener("click", () => choose({ site: place, head }));
      line.append(make("td", {}, button));
    }
    table.append(line);
  });
  const said = byId("kinds-said");
  if (measure) {
    said.replaceChildren(legend(ramps().one, [figure(low), figure(high)]), ` ${measure.formula}${measure.source ? ` (${measure.source})` : ""}`);
  } else {
    const starred = data.restKinds.flat().some(Boolean), named = [...kinds, ...new Set(data.restKinds.flat()), starred ? "rest" : ""];
    const passed = data.thresholds.filter((line) => named.includes(line.split(":")[0]));
    const star = starred ? [make("li", {}, "* sink, and what the rest of its weight does")] : [];
    said.replaceChildren(make("ul", {}, ...star, make("li", {}, "· mixed: no threshold is passed"), ...passed.map((line) => make("li", {}, line))));
  }
}
