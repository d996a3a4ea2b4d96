// The comparison page: the same charts for several runs, a run's colour from its map, its dash from its place among them.

import { get } from "./api.js";
import { bind } from "./bind.js";
import { Chart } from "./chart.js";
import { runItems } from "./run_items.js";
import { colors } from "./theme.js";
import { buckets } from "./typed.js";

const root = document.querySelector("[data-compare-url]");
const DASH = { solid: "", dash: "8 4", dot: "2 3", dashdot: "8 3 2 3", longdash: "12 4", longdashdot: "12 3 2 3" };

// Curves under the names the charts use: "<run id>:<series>".
function curves(compare) {
  const data = {};
  for (const [id, parts] of Object.entries(compare.curves ?? {})) {
    for (const [name, series] of Object.entries(parts)) if (series) data[`${id}:${name}`] = buckets(series);
  }
  return data;
}

function keys(items) {
  for (const { key, color, dash } of items) {
    const svg = document.querySelector(`[data-key="${key}"]`);
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    const look = { x1: 0, y1: 4, x2: 28, y2: 4, stroke: `var(--${color})`, "stroke-width": 2.5, "stroke-dasharray": DASH[dash] };
    for (const [name, value] of Object.entries(look)) line.setAttribute(name, value);
    svg?.replaceChildren(line);
  }
}

if (root) {
  const [{ figures }, compare] = await Promise.all([get(root.dataset.figuresUrl), get(root.dataset.compareUrl)]);
  const items = runItems(compare.runs);
  const data = curves(compare);
  const byRun = new Map(items.map((item) => [item.key, item]));
  const ranges = compare.ranges.map((range) => ({ ...range, ...look(range) }));
  keys(items);
  for (const element of document.querySelectorAll("[data-chart]")) {
    const entry = figures[element.dataset.chart];
    const shown = element.dataset.chart === "compare_ranges" ? ranges : items;
    if (shown === ranges) element.style.height = `${Math.max(160, 80 + 34 * ranges.length)}px`;
    new Chart(element, entry, () => bind(entry.figure, data, { items: shown, colors: colors() })).refresh();
  }

  function look(range) {
    const item = byRun.get(String(range.run_id));
    return { label: item ? `${item.label} #${item.key}` : range.reparameterization, color: `map-${range.reparameterization}` };
  }
}
