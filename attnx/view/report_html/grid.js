// Every layer and head as a thumbnail.

const thumbCells = new Map();

async function drawGrid() {
  const grid = byId("grid");
  const widest = Math.max(...data.sites.map((site) => site.heads));
  grid.style.setProperty("--heads", widest);
  grid.style.setProperty("--label", `${Math.max(6, ...data.sites.map((site) => site.label.length)) * 0.46 + 0.4}rem`);
  grid.setAttribute("aria-rowcount", data.sites.length);
  grid.setAttribute("aria-colcount", widest);
  const top = make("div", { role: "row", class: "thumbs names" }, make("span", { role: "columnheader", class: "label" }, "head →"));
  for (let head = 0; head < widest; head++) top.append(make("span", { role: "columnheader" }, String(head)));
  grid.replaceChildren(top);
  for (const [place, site] of data.sites.entries()) {
    const line = make("div", { role: "row", class: "thumbs" }, make("span", { role: "rowheader", class: "label" }, site.label));
    for (let head = 0; head < site.heads; head++) {
      const kind = kindOf(place, head);
      const cell = make(
        "button",
        { role: "gridcell", class: "thumb hatch", "data-r": place, "data-c": head, tabindex: "-1",
          "aria-label": `${labelOf(place, head)}${kind ? `, ${kind}` : ""}, largest weight ${figure(site.peaks[head])}` },
        make("canvas", { "aria-hidden": "true" }),
      );
      cell.title = `${labelOf(place, head)}${kind ? ` · ${kind}` : ""} · largest weight ${figure(site.peaks[head])}`;
      cell.addEventListener("click", () => choose({ site: place, head }));
      thumbCells.set(`${place}.${head}`, cell);
      line.append(cell);
    }
    grid.append(line);
  }
  roving(grid, (row, column) => thumbCells.get(`${row}.${Math.min(column, data.sites[row].heads - 1)}`), () => [data.sites.length, widest]);
  await paintThumbs();
}

async function paintThumbs() {
  let block = 1;
  for (const [place, site] of data.sites.entries()) {
    const bytes = await bytesOf(site.thumbs), [rows, columns] = site.thumb, size = rows * columns;
    block = Math.max(block, ...site.thumbBlock);
    const special = data.sides[site.keys].special;
    for (let head = 0; head < site.heads; head++) {
      const codes = bytes.subarray(head * size, (head + 1) * size);
      const clear = (at) => codes[at] === 0 || (state.mute && columns === special.length && special[at % columns]);
      let most = 1;
      for (let at = 0; at < size; at++) if (!clear(at) && codes[at] > most) most = codes[at];
      // The codes are square roots already.
      const place_ = (code) => spread(((code - 1) / Math.max(1, most - 1)) ** 2, state.scale);
      heat(thumbCells.get(`${place}.${head}`).firstChild, codes, rows, columns, ramps().one, place_, clear);
    }
  }
  const said = byId("grid-said");
  said.replaceChildren(
    "query ↓ key → in each; every head on its own scale, ", SCALE_SAID[state.scale],
    block > 1 ? `; each block is the mean of up to ${block} × ${block} weights. ` : ". ",
    legend(ramps().one, ["0", "largest"], { hidden: data.sites.some((site) => site.hidden?.some((one) => one != null)) }),
  );
}

function markGrid() {
  for (const [name, cell] of thumbCells) {
    const chosen = name === `${state.site}.${state.head}`;
    cell.setAttribute("aria-selected", chosen);
    cell.tabIndex = chosen ? 0 : -1;
  }
}
