// The theory page: draws the figures that came with it, in the page's colours.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { find, findAll, given } from "./dom.js";
import { colors } from "./theme.js";
import { decode } from "./typed.js";

/** @type {{figures: Record<string, ChartEntry>}} */
const { figures } = await get("/api/figures");
for (const element of findAll("[data-chart]", HTMLElement)) {
  const [time, chart] = [given(element, "time"), given(element, "chart")];
  /** @type {Figure} */
  const bound = JSON.parse(find(`[data-figure-of="${time} ${chart}"]`, HTMLScriptElement).text);
  new Chart(element, figures[chart], () => ({ ...bound, data: bound.data.map(recolored) })).refresh();
}

/** @param {Trace} trace */
function recolored(trace) {
  const [x, y] = [trace.x, trace.y].map((values) => (values?.bdata === undefined ? values : decode(values)));
  return { ...trace, x, y, line: { ...trace.line, color: colors()[trace.meta.color ?? ""] ?? colors().muted } };
}
