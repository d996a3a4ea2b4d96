// Colours and layout of the charts, read from the CSS variables, so that charts follow the page into dark mode.

const NAMES = ["accent", "ink", "muted", "danger", "warning", "grid", "surface", "border"];
const MAPS = ["direct", "relu", "clip", "exp", "softplus", "tanh", "best", "heavytail", "sigmoid"];
const dark = matchMedia("(prefers-color-scheme: dark)");

/** @returns {Colors} */
export function colors() {
  const style = getComputedStyle(document.documentElement);
  const names = [...NAMES, ...MAPS.map((m) => `map-${m}`), ...[...Array(8).keys()].map((i) => `line-${i}`)];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** @param {Layout} layout */
export function themed(layout) {
  const c = colors();
  const axis = { gridcolor: c.grid, linecolor: c.border, tickcolor: c.border, automargin: true };
  const family = getComputedStyle(document.body).fontFamily;
  return {
    ...layout,
    font: { family, size: 12, color: c.muted },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { bgcolor: c.surface, bordercolor: c.border, font: { family, size: 12, color: c.ink } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: c.muted, activecolor: c.accent },
    xaxis: { ...axis, ...layout.xaxis },
    yaxis: { ...axis, ...layout.yaxis },
  };
}

/** @param {() => void} redraw */
export function onThemeChange(redraw) {
  dark.addEventListener("change", redraw);
}
