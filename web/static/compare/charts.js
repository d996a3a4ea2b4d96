// One chart of the comparison: a line per run of one series, or bands of groups.

import { Chart } from "../chart/chart.js";
import { Crowd } from "./crowd.js";
import { comparedFigure } from "./figure.js";
import { drawGroupKeys } from "./runs.js";
import { colors } from "../lib/theme.js";
import { buckets } from "../lib/typed.js";

/**
 * @typedef {{crowd: Crowd, chart: Chart, replace: (series: string, curves: CompareAnswer["curves"]) => void}} CompareChart
 *   replace: sets the series that the next drawing shows
 * @typedef {import("./model.js").View & {resets: number}} ShownView resets: number of times that the zoom was reset
 */

/**
 * @param {string} series
 * @param {object} of
 * @param {HTMLElement} of.element
 * @param {ChartEntry} of.entry
 * @param {CompareAnswer["curves"]} of.curves
 * @param {import("./runs.js").ShownRun[]} of.runs
 * @param {ShownView} of.view read at each drawing
 * @param {HTMLElement | null} of.groups element of the bands' legend
 * @returns {CompareChart}
 */
export function compareChart(series, { element, entry, curves, runs, view, groups }) {
  let data = dataOf(runs, curves, series);
  const crowd = new Crowd(element);
  const chart = new Chart(element, entry, () => {
    const { figure, lines, looks } = comparedFigure(
      entry.figure,
      runs,
      data,
      groups ? view : { ...view, metric: "", larger: false },
      colors(),
    );
    crowd.lines = lines;
    if (groups) drawGroupKeys(groups, looks);
    const uirevision = `${view.x} ${view.y} ${view.metric} ${view.resets}`;
    Object.assign(figure.layout, { showlegend: false, hovermode: false, uirevision });
    return figure;
  });
  return { crowd, chart, replace: (name, fresh) => (data = dataOf(runs, fresh, name)) };
}

/**
 * @param {import("./runs.js").ShownRun[]} runs
 * @param {CompareAnswer["curves"]} curves
 * @param {string} series
 * @returns {Map<string, Buckets>} by the run's key
 */
const dataOf = (runs, curves, series) =>
  new Map(
    runs.flatMap((run) => (curves?.[run.key]?.[series] ? [[run.key, read(curves[run.key][series], series)]] : [])),
  );

/**
 * The series as buckets. The chart of ratios draws only the largest value over the eigenvalues, so `max` also replaces
 * `min`.
 * @param {SeriesAnswer} answer
 * @param {string} series
 */
function read(answer, series) {
  const found = buckets(answer);
  return series === "max_grad_over_weight" ? { ...found, min: found.max } : found;
}
