// Colours and layout of the charts. They come from the CSS variables, so that the charts change to dark mode together
// with the page.

const dark = matchMedia("(prefers-color-scheme: dark)");

/** @type {Colors | null} */
let known = null;
dark.addEventListener("change", () => (known = null)); // this listener runs before any chart is drawn again

/** @returns {Colors} */
export function colors() {
  return (known ??= read());
}

/** @returns {Colors} */
function read() {
  const style = getComputedStyle(document.documentElement);
  const roots = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).filter(isRoot);
  const names = roots.flatMap((rule) => [...rule.style]).filter((name) => name.startsWith("--"));
  return Object.fromEntries(names.map((name) => [name.slice(2), style.getPropertyValue(name).trim()]));
}

/**
 * @param {CSSRule} rule
 * @returns {rule is CSSStyleRule}
 */
function isRoot(rule) {
  return rule instanceof CSSStyleRule && rule.selectorText === ":root";
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
