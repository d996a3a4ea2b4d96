// The page of the paper: draws the figures that the page contains.

import { get } from "../lib/api.js";
import { Chart } from "../chart/chart.js";
import { findAll, given } from "../lib/dom.js";
import { exportable } from "../lib/exports.js";
import { recolored } from "../chart/recolor.js";
import { colors } from "../lib/theme.js";
import { decode } from "../lib/typed.js";

/** @type {{figures: Record<string, ChartEntry>}} */
const { figures } = await get("/api/figures");
/**
 * A trace in this page's colours; each bar has the colour of the map that its label begins with.
 * @param {Trace} trace
 */
function dressed(trace) {
  const shown = recolored(trace);
  if (trace.meta.field !== "range") return shown;
  const labels = /** @type {string[]} */ (/** @type {unknown} */ (trace.y));
  const color = labels.map((label) => colors()[`map-${label.split(/[,:]/)[0].trim()}`] ?? colors().muted);
  const base = /** @type {any} */ (trace).base;
  return { ...shown, base: base?.bdata === undefined ? base : decode(base), marker: { ...trace.marker, color } };
}

for (const element of findAll("[data-chart]", HTMLElement)) {
  const script = element.closest("figure")?.nextElementSibling;
  if (!script?.matches("script[data-figure]")) continue;
  /** @type {Figure} */
  const figure = JSON.parse(script.textContent ?? "");
  const data = () => figure.data.map(dressed);
  new Chart(element, figures[given(element, "chart")], () => ({ ...figure, data: data() })).refresh();
}
exportable(() => ({}));
