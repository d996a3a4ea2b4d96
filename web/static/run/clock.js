// The horizontal axis: converts steps to tokens or training time and back.

import { summaryRows } from "../chart/summary.js";

/**
 * @typedef {object} Axis
 * @property {string} title
 * @property {(step: number) => number} of
 * @property {(x: number) => number} back
 */

/** @type {Axis} */
export const STEPS = { title: "step", of: (step) => step, back: (x) => x };

/**
 * The axis of tokens, which are the sequence steps trained so far; every training step adds the same number.
 * @param {number} perStep
 * @returns {Axis}
 */
export function tokens(perStep) {
  return { title: "tokens (sequence steps trained)", of: (step) => step * perStep, back: (x) => x / perStep };
}

/**
 * The axis of training time: the sum of the recorded step times, without waiting, evaluation and pauses between
 * attempts. A step between two records gets the time of the later record.
 * @param {Pick<Buckets, "step" | "last">} seconds recorded seconds per step
 * @returns {Axis}
 */
export function time({ step, last }) {
  const at = new Float64Array(step.length);
  let [before, sum, per] = [0, 0, 1];
  for (let i = 0; i < step.length; i += 1) {
    if (last[i] > 0 && Number.isFinite(last[i])) per = last[i];
    sum += (step[i] - before) * per;
    at[i] = sum;
    before = step[i];
  }
  const newest = per;
  return {
    title: "training time in s (sum of the recorded step times)",
    of: (s) => between(step, at, s, newest),
    back: (x) => between(at, step, x, 1 / newest),
  };
}

/**
 * Interpolates linearly from the origin through the points; continues with `slope` beyond the last point.
 * @param {Float64Array} x
 * @param {Float64Array} y
 * @param {number} v
 * @param {number} slope
 */
function between(x, y, v, slope) {
  const n = x.length;
  if (!n) return v * slope;
  if (v >= x[n - 1]) return y[n - 1] + (v - x[n - 1]) * slope;
  const i = firstFrom(x, v);
  const [x0, y0] = i ? [x[i - 1], y[i - 1]] : [0, 0];
  return x[i] === x0 ? y[i] : y0 + ((v - x0) / (x[i] - x0)) * (y[i] - y0);
}

/**
 * Index of the first of the ascending values that is at least `v`; the number of values if all values are smaller.
 * @param {ArrayLike<number>} values
 * @param {number} v
 */
export function firstFrom(values, v) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < v) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Index of the value nearest to `v` among ascending values; -1 if there are no values.
 * @param {ArrayLike<number>} values
 * @param {number} v
 */
export function nearest(values, v) {
  const i = firstFrom(values, v);
  if (!values.length) return -1;
  if (i === values.length) return i - 1;
  return i && v - values[i - 1] <= values[i] - v ? i - 1 : i;
}

/**
 * The rows of a series between two steps, and one more row on each side, so that lines reach the edges of the chart.
 * @param {Series} series
 * @param {number} from
 * @param {number} to
 * @returns {Series}
 */
export function rowsBetween(series, from, to) {
  const n = series.step.length;
  const [low, high] = [Math.max(0, firstFrom(series.step, from) - 1), Math.min(n, firstFrom(series.step, to) + 1)];
  if ("low" in series) return low === 0 && high === n ? series : summaryRows(series, low, high);
  return rows(series, low, high);
}

/**
 * @param {Buckets} series
 * @param {number} low index of the first row
 * @param {number} [high] index after the last row
 * @returns {Buckets} views of these rows
 */
export function rows({ step, width, min, max, last, nonfinite }, low, high = step.length) {
  /** @param {Float32Array} numbers */
  const cut = (numbers) => numbers.subarray(low * width, high * width);
  return {
    step: step.subarray(low, high),
    width,
    min: cut(min),
    max: cut(max),
    last: cut(last),
    nonfinite: cut(nonfinite),
  };
}
