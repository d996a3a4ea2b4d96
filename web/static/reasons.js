// Which eigenvalues of a layer are worth a line of their own, and why: the one blamed, the first outside, the nearest, the one that moved most.

import { number } from "./format.js";

/**
 * Every reason follows from the recorded numbers; `divergence` is what the run's end names.
 * @param {{distance?: Buckets, eigenvalue?: Buckets, layer: number, divergence?: {layer?: number | null, eigenvalue?: number | null} | null}} of
 * @returns {Map<number, string>} reason by column
 */
export function reasons({ distance, eigenvalue, layer, divergence }) {
  /** @type {Map<number, string>} */
  const out = new Map();
  /** @param {number | null | undefined} column @param {string} why */
  const add = (column, why) => {
    if (column === null || column === undefined || column < 0) return;
    out.set(column, [out.get(column), why].filter(Boolean).join(", "));
  };
  if (divergence?.layer === layer) add(divergence.eigenvalue, "blamed");
  if (distance?.step.length) {
    const crossed = distance.min.findIndex((d) => d < 0);
    if (crossed >= 0) {
      const row = Math.floor(crossed / distance.width);
      add(lowest(distance, row, distance.min), `first outside (step ${number(distance.step[row])})`);
    }
    const row = lastFinite(distance);
    const near = row < 0 ? -1 : lowest(distance, row, distance.last);
    if (near >= 0) add(near, distance.last[row * distance.width + near] < 0 ? "farthest outside" : "nearest to the boundary");
  }
  if (eigenvalue?.step.length) add(mover(eigenvalue), "moved most");
  return out;
}

/**
 * @param {Buckets} series
 * @param {number} row
 * @param {Float32Array} values
 */
function lowest({ width }, row, values) {
  let best = -1;
  for (let c = 0; c < width; c += 1) {
    const v = values[row * width + c];
    if (Number.isFinite(v) && (best < 0 || v < values[row * width + best])) best = c;
  }
  return best;
}

/**
 * The newest row that holds a finite value.
 * @param {Buckets} series
 */
function lastFinite({ width, last }) {
  for (let i = last.length - 1; i >= 0; i -= 1) if (Number.isFinite(last[i])) return Math.floor(i / width);
  return -1;
}

/**
 * The column with the largest distance between its first and its newest finite value.
 * @param {Buckets} series
 */
function mover({ width, last }) {
  const first = new Float64Array(width).fill(NaN);
  const newest = new Float64Array(width).fill(NaN);
  for (let i = 0; i < last.length; i += 1) {
    if (!Number.isFinite(last[i])) continue;
    if (Number.isNaN(first[i % width])) first[i % width] = last[i];
    newest[i % width] = last[i];
  }
  let best = -1;
  let most = 0;
  for (let c = 0; c < width; c += 1) {
    const moved = Math.abs(newest[c] - first[c]);
    if (moved > most) [best, most] = [c, moved];
  }
  return best;
}

/**
 * Columns in the order of their decay time -1 / ln |eigenvalue|, the fastest first, by a row of distances to the boundary:
 * the larger the distance, the shorter. Outside the boundary nothing decays: those are last; a column that is no number is the very last.
 * @param {Buckets} distance
 * @param {"end" | "start"} at
 * @returns {number[]}
 */
export function byDecay(distance, at) {
  const { width, last } = distance;
  const row = at === "start" ? 0 : Math.max(0, lastFinite(distance));
  const values = last.subarray(row * width, (row + 1) * width);
  /** @param {number} c */
  const key = (c) => (Number.isFinite(values[c]) ? values[c] : -Infinity);
  return Array.from({ length: width }, (_, c) => c).sort((a, b) => (key(a) === key(b) ? a - b : key(b) - key(a)));
}
