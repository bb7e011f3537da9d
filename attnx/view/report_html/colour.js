// Colour scales: even in lightness, safe for the colour-blind; dark ones begin dark, light ones begin light.

function fromHex(text) {
  const out = new Uint8Array(256 * 3);
  for (let at = 0; at < out.length; at++) out[at] = parseInt(text.slice(2 * at, 2 * at + 2), 16);
  return out;
}

// OKLCH to sRGB. Source: Ottosson, "A perceptual color space for image processing", 2020.
function oklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180), b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((part) => {
    const held = Math.min(1, Math.max(0, part));
    return Math.round(255 * (held <= 0.0031308 ? 12.92 * held : 1.055 * held ** (1 / 2.4) - 0.055));
  });
}

function ramp(colourAt) {
  const out = new Uint8Array(256 * 3);
  for (let at = 0; at < 256; at++) out.set(colourAt(at / 255), at * 3);
  return out;
}

const RAMPS = {
  dark: { one: fromHex(data.ramps.dark), both: fromHex(data.ramps.both) },
  light: {
    one: ramp((t) => oklch(0.975 - 0.685 * t, 0.012 + 0.36 * t * (1 - t) + 0.07 * t, 215 + 75 * t)),
    both: ramp((t) => {
      const away = Math.abs(2 * t - 1);
      return oklch(0.97 - 0.52 * away, 0.15 * away, t < 0.5 ? 255 : 45);
    }),
  },
};
// Okabe and Ito's colours, lightened or darkened for their ground.
const SORTS = {
  light: ["#0072b2", "#c24e00", "#00785a", "#a0407f", "#8a6a00", "#2f7fb5", "#555b66"],
  dark: ["#56b4e9", "#ff9d4d", "#2fc79a", "#e08cc0", "#f0e442", "#8fb7ff", "#b6bcc7"],
};

const isDark = () => document.documentElement.dataset.look === "dark";
const ramps = () => (isDark() ? RAMPS.dark : RAMPS.light);
const sorts = () => (isDark() ? SORTS.dark : SORTS.light);

// Where a value from 0 to 1 stands on the chosen scale. A logarithm shows three powers of ten.
function spread(part, kind) {
  if (!(part > 0)) return 0;
  if (kind === "root") return Math.sqrt(part);
  return kind === "log" ? Math.max(0, 1 + Math.log10(part) / 3) : part;
}

function css(ramp, part) {
  const at = 3 * Math.min(255, Math.max(0, Math.round(255 * part)));
  return `rgb(${ramp[at]} ${ramp[at + 1]} ${ramp[at + 2]})`;
}

// Black or white, whichever is read more easily on that colour. Source: WCAG 2.2, contrast ratio.
function inkOn(ramp, part) {
  const at = 3 * Math.min(255, Math.max(0, Math.round(255 * part)));
  const [r, g, b] = [0, 1, 2].map((n) => {
    const value = ramp[at + n] / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.179 ? "#fff" : "#000";
}
