// The choice of head and query, and who is told when it changes.

const state = { ...data.chosen, scale: "root", mute: false };
let shown = null;

const clamp = (value, count) => Math.max(0, Math.min(count - 1, Number.isInteger(value) ? value : 0));

function settle() {
  state.site = clamp(state.site, data.sites.length);
  state.head = clamp(state.head, data.sites[state.site].heads);
  state.query = clamp(state.query, queriesOf(state.site).pieces.length);
}

let turn = 0;
async function choose(change) {
  const before = { ...state }, mine = ++turn;
  Object.assign(state, change);
  settle();
  const moved = state.site !== before.site || state.head !== before.head || !shown;
  const turned = moved || state.query !== before.query;
  markGrid();
  if (moved) {
    const found = await headAt(state.site, state.head);
    if (mine !== turn) return;
    shown = found;
  }
  if (moved) { showHeadName(); showLines(); showMatrix(); showMaps(); showKinds(); }
  else if (turned) { showLines(); showMatrix(); moveRows(); }
  if (turned) { showRow(); remember(); announce(); await showRows(); }
}

function moveRows() {
  for (const frame of document.querySelectorAll("#stage-maps .frame")) frame.style.setProperty("--row", `${(100 * state.query) / shown.queries}%`);
}

function repaint() {
  paintThumbs(); showLines(); showMatrix(); showMaps(); showRow(); showRows(); showCoreference(); showKinds();
}

function showHeadName() {
  const site = data.sites[state.site], kind = kindOf(state.site, state.head);
  byId("head-name").textContent = labelOf(state.site, state.head);
  const facts = [kind, site.kind === "self" ? "" : `${site.kind} attention`, site.causal ? "causal" : "", site.kvHeads < site.heads ? `${site.heads} query heads share ${site.kvHeads} key heads` : "", `largest weight ${figure(site.peaks[state.head])}`];
  byId("head-said").textContent = facts.filter(Boolean).join(" · ");
}

function announce() {
  const { weights } = shown.row(state.query), pieces = keysOf(state.site).pieces;
  const best = Array.from(weights, (value, at) => [value, at]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  byId("status").textContent = `${labelOf(state.site, state.head)}, query ${queriesOf(state.site).pieces[state.query]}: ${best.map(([value, at]) => `${pieces[at]} ${figure(value)}`).join(", ")}`;
}

// The choice stands in the address, so that it can be kept and come back to.
function remember() {
  try { history.replaceState(null, "", `#${state.site}.${state.head}.${state.query}`); } catch { /* not from every address */ }
}

function recall() {
  const found = /^#(\d+)\.(\d+)\.(\d+)$/.exec(location.hash);
  if (found) [state.site, state.head, state.query] = found.slice(1).map(Number);
}

function startTabs() {
  const tabs = [byId("tab-lines"), byId("tab-matrix")];
  const turnTo = (chosen) => {
    for (const tab of tabs) {
      const here = tab === chosen;
      tab.setAttribute("aria-selected", here);
      tab.tabIndex = here ? 0 : -1;
      byId(tab.getAttribute("aria-controls")).hidden = !here;
    }
    byId("lines-said").hidden = chosen !== tabs[0];
    showLines();
    showMatrix();
  };
  tabs.forEach((tab, at) => {
    tab.addEventListener("click", () => turnTo(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = tabs[1 - at];
      other.focus();
      turnTo(other);
    });
  });
}

function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)"), paper = matchMedia("print"), select = byId("theme");
  const apply = () => {
    const dark = !paper.matches && (select.value === "auto" ? system.matches : select.value === "dark");
    const look = dark ? "dark" : "light";
    if (document.documentElement.dataset.look === look) return;
    document.documentElement.dataset.look = look;
    if (shown) repaint();
  };
  try { select.value = localStorage.getItem("attnx-theme") ?? "auto"; } catch { /* no storage for files in some browsers */ }
  select.addEventListener("change", () => {
    try { localStorage.setItem("attnx-theme", select.value); } catch { /* as above */ }
    apply();
  });
  system.addEventListener("change", apply);
  paper.addEventListener("change", apply);
  apply();
}

function showAbout() {
  const items = [
    `Weights on this page are within ${figure(data.error, 5)} of the model's${data.off === null ? "" : `, masked scores within ${figure(data.off, 4)}`}: the largest difference of all, found when the page was written. `
      + "Query and key (or scores, where that is less) are kept as 16-bit whole numbers times a step; every stage is rebuilt from them when a head is looked at. Thumbnails are 8-bit block means.",
    "Nothing is fetched: the page holds all it shows, and its policy forbids the network.",
    "Keys: Tab moves between parts; arrow keys move through heads, tokens and tables; Home and End go to the ends. The address holds the choice.",
    ...data.notes,
  ];
  byId("about-said").replaceChildren(make("ul", {}, ...items.map((item) => make("li", {}, item))), make("p", { class: "said" }, `attnx ${data.version}`));
}

async function start() {
  byId("model").textContent = data.model;
  const text = byId("text"), facts = byId("facts");
  text.textContent = data.memory ? `${data.memory} ⟶ ${data.text}` : data.text;
  const side = queriesOf(data.chosen.site).pieces.length;
  facts.textContent = [counted(side, "token"), counted(data.sites.length, "layer"), counted(data.sites.reduce((sum, site) => sum + site.heads, 0), "head"), `run on ${data.device}`, `weights within ${figure(data.error, 5)}`].join(" · ");
  startTheme();
  recall();
  settle();
  await drawGrid();
  startTabs();
  startLines();
  byId("scale").addEventListener("change", (event) => { state.scale = event.target.value; repaint(); });
  byId("mute").addEventListener("change", (event) => { state.mute = event.target.checked; repaint(); });
  showAbout();
  startKinds();
  startCoreference();
  await choose({});
  intoView(byId("queries"), state.query);
  let width = innerWidth;
  addEventListener("resize", () => { if (Math.abs(innerWidth - width) > 20) { width = innerWidth; showMatrix(); showRows(); } });
  addEventListener("hashchange", () => { const before = { ...state }; recall(); const { site, head, query } = state; Object.assign(state, before); choose({ site, head, query }); });
  document.documentElement.dataset.ready = "yes";
}

start();
