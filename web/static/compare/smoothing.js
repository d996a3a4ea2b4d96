// Smoothed lines of the comparison, and the range of the numbers that a chart shows.

import { smoothed } from "../run/smooth.js";

/**
 * The exponential mean of the last value of each bucket.
 * @param {import("./model.js").ComparedRun} run
 * @param {Buckets} series
 * @param {string} axis
 * @param {number} weight from 0 (not smoothed) to below 1
 * @param {boolean} log whether only positive values count, because the axis shows no others
 * @returns {import("./model.js").Line | null} null if the run's units per step are unknown for this axis
 */
export function smoothLine(run, series, axis, weight, log) {
  const factor = run.perStep[axis];
  if (factor === null || factor === undefined) return null;
  const shown = log ? series.last.map((value) => (value > 0 ? value : NaN)) : series.last;
  return { key: run.key, x: series.step.map((step) => step * factor), y: smoothed(shown, weight).y };
}

/**
 * The smallest and the largest positive number on the vertical axis; [0, 0] if there is none.
 * @param {{y: ArrayLike<number>}[]} traces
 * @returns {[number, number]}
 */
export function extent(traces) {
  let [low, high] = [Infinity, 0];
  for (const { y } of traces)
    for (let i = 0; i < y.length; i += 1) {
      if (!(y[i] > 0 && y[i] < Infinity)) continue;
      low = Math.min(low, y[i]);
      high = Math.max(high, y[i]);
    }
  return high > 0 ? [low, high] : [0, 0];
}

/**
 * What the smoothing is, in a sentence.
 * @param {number} weight
 */
export const describeSmoothing = (weight) =>
  weight > 0
    ? ` Smoothed: the exponential mean, with weight ${weight}, of the last value at each point of a line. Faint lines: the recorded values. Bands are not smoothed.`
    : "";
