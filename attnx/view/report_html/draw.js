// What every part draws with: elements, numbers, heatmaps, scales, the tip.

const byId = (id) => document.getElementById(id);

// An element; text is set as text, never as markup.
function make(tag, attributes = {}, ...children) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") out.className = value;
    else if (value !== null && value !== undefined && value !== false) out.setAttribute(name, value === true ? "" : value);
  }
  out.append(...children);
  return out;
}

// A token: isolated, so that right-to-left text does not turn what stands beside it.
const token = (text) => make("bdi", { class: "piece" }, text);

function figure(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 0.5 * 10 ** -digits)) return value.toExponential(1).replace("-", "−");
  return value.toFixed(size >= 1000 ? 0 : digits).replace("-", "−");
}

const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

const weight = (value) => (value > 0 && value < 0.0005 ? "<0.001" : figure(value, 3));

// Colours for values [rows x columns] as one pixel a cell. `place` gives 0 to 1; hidden and missing cells stay clear.
function heat(canvas, values, rows, columns, ramp, place, clear) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows), pixels = image.data;
  for (let at = 0; at < rows * columns; at++) {
    const value = values[at];
    if (Number.isNaN(value) || clear?.(at)) continue;
    const from = 3 * Math.min(255, Math.max(0, Math.round(255 * place(value, at))));
    pixels[4 * at] = ramp[from];
    pixels[4 * at + 1] = ramp[from + 1];
    pixels[4 * at + 2] = ramp[from + 2];
    pixels[4 * at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

function extent(values, clear) {
  let low = Infinity, high = -Infinity;
  for (let at = 0; at < values.length; at++) {
    const value = values[at];
    if (!Number.isFinite(value) || clear?.(at)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 0] : [low, high];
}

// A strip of the scale with its ends, and what empty cells mean.
function legend(ramp, ends, { hidden = false, muted = false } = {}) {
  const strip = make("canvas", { class: "strip", "aria-hidden": "true" });
  heat(strip, Float32Array.from({ length: 64 }, (_, at) => at / 63), 1, 64, ramp, (value) => value);
  const out = make("span", { class: "legend" }, ends[0], strip, ends[1]);
  if (hidden) out.append(make("span", { class: "mark-said" }, make("span", { class: "hatch swatch" }), "hidden by the mask"));
  if (muted) out.append(make("span", { class: "mark-said" }, make("span", { class: "swatch" }), "muted"));
  return out;
}

const SCALE_SAID = { root: "square root", linear: "linear", log: "logarithm, three powers of ten" };

function tipAt(event, ...content) {
  const tip = byId("tip");
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
}

const tipAway = () => { byId("tip").hidden = true; };

// Arrow keys over a table of cells, one of which has the focus: rows x columns, holes allowed.
function roving(root, cellAt, size) {
  root.addEventListener("keydown", (event) => {
    const cell = event.target.closest("[data-r]");
    if (!cell) return;
    let row = Number(cell.dataset.r), column = Number(cell.dataset.c);
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const [rows, columns] = size();
    if (steps[event.key]) { row += steps[event.key][0]; column += steps[event.key][1]; }
    else if (event.key === "Home") column = 0;
    else if (event.key === "End") column = columns - 1;
    else return;
    const next = row >= 0 && row < rows && column >= 0 ? cellAt(row, Math.min(column, columns - 1)) : null;
    event.preventDefault();
    if (next) { next.focus(); next.click(); }
  });
}
