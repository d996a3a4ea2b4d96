// The values of a chart's lines at one step as text, for the shared cursor, and the place beside the chart where they fit.

import { columnOf } from "../chart/bind.js";
import { nearest } from "./clock.js";
import { number } from "../lib/format.js";
import { kindAt, NONFINITE } from "../lib/nonfinite.js";

const GAP = 6; // pixels between a chart and its values
const BARS = 100; // pixels at the top of the window that the bars cover
const WORDS = ["NaN", "+Inf", "−Inf"]; // one name for each entry of NONFINITE

/** @typedef {{name: string, text: string, color: string}} Reading */

/**
 * @param {Figure} figure the chart's figure without data
 * @param {SeriesByName} data
 * @param {{layer: string | number, items: EigenvalueItem[], step: number, eigenvalues?: number}} at
 *   `step`: the step to show; the other fields are options of bind()
 * @returns {{step: number, readings: Reading[]} | null} at the nearest recorded step; null without data
 */
export function readout(figure, data, { layer, items, step, eigenvalues = 0 }) {
  /** @type {Reading[]} */
  const readings = [];
  let shown = -1;
  for (const { meta, name = "", fill } of figure.data) {
    const series = data[(meta.series ?? "").replace("{layer}", String(layer))];
    const row = series ? nearest(series.step, step) : -1;
    if (row < 0) continue;
    if (shown < 0) shown = series.step[row];
    const color = meta.color ?? "muted";
    if (meta.field === "max" && fill) readings.push(...range(series, row, color));
    else if (meta.field === "last" && meta.each)
      readings.push(
        ...items.map((item) =>
          one(series, row, columnOf(item.column, series, eigenvalues), `λ ${item.key}`, item.color),
        ),
      );
    else if (meta.field === "last") readings.push(one(series, row, 0, name, color));
  }
  return shown < 0 ? null : { step: shown, readings };
}

/** The readout as a sentence, for screen readers. @param {ReturnType<typeof readout>} shown */
export function sentenceOf(shown) {
  if (!shown) return "No data yet.";
  const { step, readings } = shown;
  if (!readings.length) return `Shows the steps up to ${number(step)}.`;
  return `At step ${number(step)}: ${readings.map(({ name, text }) => `${name} ${text}`).join(", ")}.`;
}

/**
 * @param {Series} series
 * @param {number} row
 * @param {number} column
 * @param {string} name
 * @param {string} color
 */
function one(series, row, column, name, color) {
  const kind = kindAt(series, row, column);
  const value = "low" in series ? series.lines.get(column)?.[row] : series.last[row * series.width + column];
  return { name, text: kind < 0 ? number(value) : WORDS[kind], color };
}

/**
 * Smallest, median and largest value of the band over all eigenvalues, and the counts of non-finite values.
 * @param {Series} series
 * @param {number} row
 * @param {string} color
 * @returns {Reading[]}
 */
function range(series, row, color) {
  const { width } = series;
  const [low, high, middle] =
    "low" in series ? [series.low[row], series.high[row], series.median[row]] : ends(series, row);
  if (width === 1 && low === high) return [];
  const out = [];
  if (Number.isFinite(low)) {
    const median = Number.isFinite(middle) && width > 1 ? ` · median ${number(middle)}` : "";
    out.push({ name: width > 1 ? "all" : "range", text: `${number(low)} to ${number(high)}${median}`, color });
  }
  if (width === 1 || ("low" in series && !series.kinds)) return out;
  const counts = NONFINITE.map(() => 0);
  for (let c = 0; c < width; c += 1) if (kindAt(series, row, c) >= 0) counts[kindAt(series, row, c)] += 1;
  counts.forEach((n, k) => n && out.push({ name: WORDS[k], text: `${n} of ${width}`, color: "danger" }));
  return out;
}

/**
 * Smallest, largest and median finite value of a row; NaN if no value is finite.
 * @param {Buckets} series
 * @param {number} row
 */
function ends({ width, min, max, last }, row) {
  const of = (/** @type {Float32Array} */ rows) =>
    rows
      .subarray(row * width, (row + 1) * width)
      .filter(Number.isFinite)
      .sort();
  const [low, high, middle] = [of(min), of(max), of(last)];
  const n = middle.length;
  return [low[0] ?? NaN, high.at(-1) ?? NaN, n ? (middle[(n - 1) >> 1] + middle[n >> 1]) / 2 : NaN];
}

/**
 * Where a panel fits next to a chart: to its right, to its left, below or above; null if it fits nowhere.
 * @param {{left: number, right: number, top: number, bottom: number}} chart
 * @param {{width: number, height: number}} panel
 * @param {number} width of the window
 * @param {number} height of the window
 * @returns {[number, number] | null}
 */
export function beside(chart, { width: w, height: h }, width, height) {
  const top = Math.max(BARS, Math.min(chart.top, height - h));
  const left = Math.max(0, Math.min(chart.left, width - w));
  if (chart.right + GAP + w <= width) return [chart.right + GAP, top];
  if (chart.left - GAP - w >= 0) return [chart.left - GAP - w, top];
  if (chart.bottom + GAP + h <= height) return [left, chart.bottom + GAP];
  return chart.top - GAP - h >= BARS ? [left, chart.top - GAP - h] : null;
}
