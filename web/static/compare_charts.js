// One chart of the comparison: a line per run, or bands of groups, of one series.

import { Chart } from "./chart.js";
import { Crowd } from "./chart_crowd.js";
import { bandLooks, bandTraces, drawGroupKeys, lineTraces, lostTrace } from "./compare_figure.js";
import { bandOf, firstLost, lineOf } from "./compare_model.js";
import { colors } from "./theme.js";
import { buckets } from "./typed.js";

const AXES = { step: "step", tokens: "tokens", seconds: "training time (s, at each run's mean speed)" };

/**
 * @typedef {{crowd: Crowd, chart: Chart}} CompareChart
 * @typedef {import("./compare_model.js").View & {resets: number}} ShownView resets: how often the zoom was taken back
 */

/**
 * @param {string} series
 * @param {object} of
 * @param {HTMLElement} of.element
 * @param {ChartEntry} of.entry
 * @param {CompareAnswer["curves"]} of.curves
 * @param {import("./compare_runs.js").ShownRun[]} of.runs
 * @param {ShownView} of.view as it is when it is drawn
 * @param {HTMLElement | null} of.groups where the bands' legend stands
 * @returns {CompareChart}
 */
export function compareChart(series, { element, entry, curves, runs, view, groups }) {
  /** @type {Map<string, Buckets>} */
  const data = new Map(runs.flatMap((run) => (curves?.[run.key]?.[series] ? [[run.key, read(curves[run.key][series], series)]] : [])));
  const crowd = new Crowd(element);
  const chart = new Chart(element, entry, () => {
    const palette = colors();
    const there = runs.filter((run) => data.has(run.key));
    const drawn = view.show === "groups" ? there.filter((run) => view.ticked.has(run.key)) : there;
    const lines = drawn.flatMap((run) => lineOf(run, seriesOf(run.key), view.x, view.y === "log", drawn.length) ?? []);
    const made = lineTraces(lines, runs, palette);
    crowd.lines = made;
    const names = view.show === "groups" ? [...new Set(there.map((run) => run.group))] : [];
    const bands = names.map((group) => {
      const members = there.filter((run) => run.group === group);
      return { group, of: members, band: bandOf(members.map((run) => ({ run, series: seriesOf(run.key) })), view.x) };
    });
    const looks = bandLooks(bands, palette);
    if (groups) drawGroupKeys(groups, looks);
    const lost = drawn.flatMap((run) => firstLost(run, seriesOf(run.key), view.x) ?? []);
    const traces = [...bands.flatMap((one, i) => bandTraces(one.band, looks[i], i, bands.length > 3 ? "14" : "22")), ...made.map((line) => line.trace)];
    return { data: /** @type {any[]} */ ([...traces, lostTrace(lost, palette)]), layout: layoutOf(entry, view) };
  });
  /** @param {string} key */
  const seriesOf = (key) => /** @type {Buckets} */ (data.get(key));
  return { crowd, chart };
}

/**
 * @param {ChartEntry} entry
 * @param {ShownView} view
 */
function layoutOf(entry, { x, y, range, resets }) {
  const { layout } = structuredClone(entry.figure);
  const title = { text: AXES[/** @type {keyof AXES} */ (x)] };
  Object.assign(layout.xaxis ?? {}, { title, ...(range ? { range, autorange: false } : {}) });
  Object.assign(layout.yaxis ?? {}, { type: y });
  return Object.assign(layout, { showlegend: false, hovermode: false, uirevision: `${x} ${y} ${resets}` });
}

/**
 * The ratios' `min` goes over eigenvalues as well; what is drawn of them is the largest.
 * @param {SeriesAnswer} answer
 * @param {string} series
 */
function read(answer, series) {
  const found = buckets(answer);
  return series === "train/loss" ? found : { ...found, min: found.max };
}
