// The theory page: draws the figures that came with it, in the page's colours.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { colors } from "./theme.js";
import { decode } from "./typed.js";

const figures = await get("/api/figures").then((answer) => answer.figures ?? answer);
for (const element of document.querySelectorAll("[data-chart]")) {
  const { time, chart } = element.dataset;
  const bound = JSON.parse(document.querySelector(`[data-figure-of="${time} ${chart}"]`).textContent);
  const build = () => ({ ...bound, data: bound.data.map(recolored) });
  new Chart(element, figures[chart], build).refresh();
}

function recolored(trace) {
  const [x, y] = [trace.x, trace.y].map((a) => (a?.bdata === undefined ? a : decode(a)));
  return { ...trace, x, y, line: { ...trace.line, color: colors()[trace.meta.color] ?? trace.line.color } };
}
