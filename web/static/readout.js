// What the lines of a chart are at one step, as text: the values under the shared cursor.

import { nearest } from "./clock.js";
import { number } from "./format.js";
import { kindOf, NONFINITE } from "./nonfinite.js";

const WORDS = ["NaN", "+Inf", "−Inf"]; // one for each of NONFINITE

/** @typedef {{name: string, text: string, color: string}} Reading */

/**
 * @param {Figure} figure of the chart, without data
 * @param {SeriesByName} data
 * @param {{layer: number, items: EigenvalueItem[], step: number}} at
 * @returns {{step: number, readings: Reading[]} | null} at the recorded step nearest to the one asked for; null without data
 */
export function readout(figure, data, { layer, items, step }) {
  /** @type {Reading[]} */
  const readings = [];
  let shown = -1;
  for (const { meta, name = "" } of figure.data) {
    const series = data[(meta.series ?? "").replace("{layer}", String(layer))];
    const row = series ? nearest(series.step, step) : -1;
    if (row < 0) continue;
    if (shown < 0) shown = series.step[row];
    const color = meta.color ?? "muted";
    if (meta.field === "max") readings.push(...range(series, row, color));
    else if (meta.field === "last" && meta.each) readings.push(...items.map((item) => one(series, row, item.column, item.key, item.color)));
    else if (meta.field === "last") readings.push(one(series, row, 0, name, color));
  }
  return shown < 0 ? null : { step: shown, readings };
}

/**
 * @param {Buckets} series
 * @param {number} row
 * @param {number} column
 * @param {string} name
 * @param {string} color
 */
function one({ width, last, nonfinite }, row, column, name, color) {
  const i = row * width + column;
  const kind = kindOf(last[i], nonfinite[i]);
  return { name, text: kind < 0 ? number(last[i]) : WORDS[kind], color };
}

/**
 * The band over all eigenvalues: smallest, median, largest; and what it does not show.
 * @param {Buckets} series
 * @param {number} row
 * @param {string} color
 * @returns {Reading[]}
 */
function range({ width, min, max, last, nonfinite }, row, color) {
  if (width === 1 && min[row] === max[row]) return [];
  const of = (/** @type {Float32Array} */ rows) => rows.subarray(row * width, (row + 1) * width);
  const [low, high] = [of(min).filter(Number.isFinite), of(max).filter(Number.isFinite)];
  const middle = of(last).filter(Number.isFinite).sort();
  const out = [];
  if (low.length) {
    const n = middle.length;
    const median = n && width > 1 ? ` · median ${number((middle[(n - 1) >> 1] + middle[n >> 1]) / 2)}` : "";
    out.push({ name: width > 1 ? "all" : "range", text: `${number(least(low))} to ${number(most(high))}${median}`, color });
  }
  const counts = NONFINITE.map((_, k) => of(last).reduce((n, v, c) => n + (kindOf(v, nonfinite[row * width + c]) === k ? 1 : 0), 0));
  counts.forEach((n, k) => n && width > 1 && out.push({ name: WORDS[k], text: `${n} of ${width}`, color: "danger" }));
  return out;
}

/** @param {Float32Array} values */
const least = (values) => values.reduce((a, b) => Math.min(a, b));
/** @param {Float32Array} values */
const most = (values) => values.reduce((a, b) => Math.max(a, b));
