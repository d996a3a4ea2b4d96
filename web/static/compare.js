// The comparison page: the same charts for several runs, a run's colour from its map, its dash from its place among them.

import { get } from "./api.js";
import { bind } from "./bind.js";
import { Chart } from "./chart.js";
import { findAll, given } from "./dom.js";
import { runItems } from "./run_items.js";
import { colors } from "./theme.js";
import { buckets } from "./typed.js";

const root = document.querySelector("[data-compare-url]");
/** @type {Record<string, string>} Plotly's names of dashes as SVG dash arrays */
const DASHES = { solid: "", dash: "8 4", dot: "2 3", dashdot: "8 3 2 3", longdash: "12 4", longdashdot: "12 3 2 3" };

/**
 * Curves under the names the charts use: "<run id>:<series>".
 * @param {CompareAnswer} compare
 */
function curves(compare) {
  /** @type {SeriesByName} */
  const data = {};
  for (const [id, parts] of Object.entries(compare.curves ?? {})) {
    for (const [name, series] of Object.entries(parts)) if (series) data[`${id}:${name}`] = buckets(series);
  }
  return data;
}

/**
 * The small lines beside the runs' names, as the charts draw them.
 * @param {{key: string, color: string, dash: string}[]} items
 */
function drawKeys(items) {
  for (const { key, color, dash } of items) {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    const look = { x1: 0, y1: 4, x2: 28, y2: 4, stroke: `var(--${color}, var(--muted))`, "stroke-width": 2.5, "stroke-dasharray": DASHES[dash] };
    for (const [name, value] of Object.entries(look)) line.setAttribute(name, String(value));
    document.querySelector(`[data-key="${key}"]`)?.replaceChildren(line);
  }
}

if (root instanceof HTMLElement) {
  /** @type {[{figures: Record<string, ChartEntry>}, CompareAnswer]} */
  const [{ figures }, compare] = await Promise.all([get(given(root, "figuresUrl")), get(given(root, "compareUrl"))]);
  const items = runItems(compare.runs);
  const data = curves(compare);
  const labels = new Map(items.map((item) => [item.key, `${item.label} #${item.key}`]));
  const ranges = compare.ranges.map((range) => {
    const label = labels.get(String(range.run_id)) ?? range.reparameterization;
    return { ...range, label, color: `map-${range.reparameterization.split(", ")[0]}` };
  });
  drawKeys(items);
  for (const element of findAll("[data-chart]", HTMLElement)) {
    const entry = figures[given(element, "chart")];
    const ofRanges = element.dataset.chart === "compare_ranges";
    if (ofRanges) element.style.height = `${Math.max(160, 80 + 34 * ranges.length)}px`;
    new Chart(element, entry, () => bind(entry.figure, data, { items: ofRanges ? ranges : items, colors: colors() })).refresh();
  }
}
