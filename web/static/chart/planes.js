// Places complex eigenvalues on the unit disc or the half-plane of continuous time; web/planes.py does the same on the
// server.

import { kindAt } from "../lib/nonfinite.js";

const MAX_PLACES = 512; // maximum number of eigenvalues with marked points; if there are more, every n-th one is marked
const HALF_CIRCLE = Float64Array.from({ length: 91 }, (_, i) => (Math.PI * i) / 90);

/**
 * x and y of a trace, which shows one of these: the path of an eigenvalue, its newest point (`end`), the first or the
 * newest points of all eigenvalues (`then`, `now`), the boundary, or a mark if some eigenvalues are not finite.
 * @param {Trace} trace
 * @param {Series | undefined} first the angles, or the decay rates
 * @param {Series | undefined} second the absolute values, or the imaginary parts
 * @param {number} column column of the eigenvalue
 * @param {boolean} log whether the vertical axis is logarithmic
 * @returns {Partial<Trace>}
 */
export function onPlane({ meta: { field, plane = "" }, name = "" }, first, second, column, log) {
  if (field === "boundary" && plane === "disc") return { x: HALF_CIRCLE.map(Math.cos), y: HALF_CIRCLE.map(Math.sin) };
  if (!first?.step.length || !second?.step.length)
    return { x: [], y: [], visible: ["path", "end", "now"].includes(field) };
  if (field === "path") {
    const rows = Math.min(first.step.length, second.step.length);
    return placed(plane, line(first, column, rows), line(second, column, rows));
  }
  if (field === "end")
    return placed(plane, newest(first).subarray(column, column + 1), newest(second).subarray(column, column + 1));
  if (field === "boundary") {
    const reach = [...ends(second).first, ...newest(second)].filter((v) => Number.isFinite(v) && v !== 0).map(Math.abs);
    return { x: [0, 0], y: [log ? Math.min(1, ...reach) : 0, Math.max(1e-3, ...reach)] };
  }
  if (field === "lost") return lost(first, second);
  const every = everyOf(first.width);
  const chosen = Array.from({ length: Math.ceil(first.width / every) }, (_, i) => i * every);
  const [a, b] = [first, second].map((series) => {
    const all = field === "now" ? newest(series) : ends(series).first;
    return Float64Array.from(chosen, (c) => all[c]);
  });
  return { ...placed(plane, a, b), customdata: chosen, name: every > 1 ? `${name} (1 of ${every})` : name };
}

/**
 * The newest row with a finite value, or the first row if no value is finite.
 * @param {Series} series
 */
export function newest(series) {
  if ("low" in series) return series.each.end;
  const { width, last } = series;
  const row = Math.max(0, Math.floor(last.findLastIndex(Number.isFinite) / width));
  return last.subarray(row * width, (row + 1) * width);
}

/**
 * The first and the last finite value of each eigenvalue.
 * @param {Series} series
 */
export function ends(series) {
  if ("low" in series) return series.each;
  const { width, last: values } = series;
  const [first, last] = [new Float64Array(width).fill(NaN), new Float64Array(width).fill(NaN)];
  for (let i = 0; i < values.length; i += 1) {
    if (!Number.isFinite(values[i])) continue;
    if (Number.isNaN(first[i % width])) first[i % width] = values[i];
    last[i % width] = values[i];
  }
  return { first, last };
}

// The stride is odd, because eigenvalues are ordered by channel: if the number of modes per channel is even, an even
// stride would skip the same modes of every channel.
/** @param {number} width */
const everyOf = (width) => (width <= MAX_PLACES ? 1 : Math.ceil(width / MAX_PLACES) | 1);

/**
 * @param {Series} series
 * @param {number} column
 * @param {number} rows
 */
function line(series, column, rows) {
  if ("low" in series) return series.lines.get(column)?.subarray(0, rows) ?? new Float32Array(rows).fill(NaN);
  return Float32Array.from({ length: rows }, (_, i) => series.last[i * series.width + column]);
}

/**
 * @param {string} plane
 * @param {Float32Array | Float64Array} first
 * @param {Float32Array | Float64Array} second
 */
function placed(plane, first, second) {
  const [x, y] = [new Float32Array(first.length), new Float32Array(first.length)];
  for (let i = 0; i < first.length; i += 1) {
    const [a, b] = [first[i], second[i]];
    [x[i], y[i]] = plane === "disc" ? [b * Math.cos(a), Math.abs(b * Math.sin(a))] : [-a, Math.abs(b)];
    if (!Number.isFinite(x[i]) || !Number.isFinite(y[i])) x[i] = y[i] = NaN;
  }
  return { x, y };
}

/**
 * A mark in the corner of the chart if eigenvalues are not finite.
 * @param {Series} first
 * @param {Series} second
 */
function lost(first, second) {
  const [row, other] = [first.step.length - 1, second.step.length - 1];
  let bad = 0;
  for (let c = 0; c < first.width; c += 1) if (gone(first, row, c) || gone(second, other, c)) bad += 1;
  if (!bad) return { x: [], y: [], visible: false };
  return {
    x: [0.99],
    y: [0.97],
    text: [`${bad} of ${first.width} not finite at step ${first.step[row]}`],
    visible: true,
  };
}

/** @param {Series} series @param {number} row @param {number} c */
function gone(series, row, c) {
  return "low" in series ? kindAt(series, row, c) >= 0 : !Number.isFinite(series.last[row * series.width + c]);
}
