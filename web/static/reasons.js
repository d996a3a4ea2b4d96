// Which eigenvalues of a layer are worth a line of their own, and why: the one blamed, the first outside, the nearest, the one that moved most.

import { number } from "./format.js";
import { ends, newest } from "./planes.js";

/** What the kinds of a verdict's events say of an eigenvalue. */
const HAPPENED = /** @type {Record<string, string>} */ ({ crossing: "crossed", gradient_spike: "spike of its gradient", nonfinite: "no longer finite" });

/**
 * @typedef {{layer?: number | null, eigenvalue?: number | null}} Place
 * @typedef {Place & {kind: string, step: number}} Happening an event of the verdict
 */

/**
 * Every reason follows from the recorded numbers; `divergence` is what the run's end names, `culprit` and `events` what the verdict
 * does. Its first crosser is the one, where it names one: the numbers here may be too coarse to tell.
 * @param {{distance?: Series, eigenvalue?: Series, layer: number, divergence?: Place | null, culprit?: Place | null, events?: Happening[]}} of
 * @returns {Map<number, string>} reason by column
 */
export function reasons({ distance, eigenvalue, layer, divergence, culprit, events = [] }) {
  /** @type {Map<number, string>} */
  const out = new Map();
  /** @param {number | null | undefined} column @param {string} why */
  const add = (column, why) => {
    if (column === null || column === undefined || column < 0) return;
    out.set(column, [out.get(column), why].filter(Boolean).join(", "));
  };
  const blamed = culprit ?? divergence;
  if (blamed?.layer === layer) add(blamed.eigenvalue, "blamed");
  const here = events.filter((event) => event.layer === layer && HAPPENED[event.kind]);
  const first = Math.min(...here.filter(({ kind }) => kind === "crossing").map(({ step }) => step));
  for (const { kind, step, eigenvalue: column } of here) {
    add(column, `${kind === "crossing" && step === first ? "first outside" : HAPPENED[kind]} (step ${number(step, 9)})`);
  }
  if (distance?.step.length) {
    const [row, column] = crossing(distance);
    if (row >= 0 && !here.some(({ kind }) => kind === "crossing")) add(column, `first outside (step ${number(distance.step[row])})`);
    const end = newest(distance);
    const near = lowest(end);
    if (near >= 0) add(near, end[near] < 0 ? "farthest outside" : "nearest to the boundary");
  }
  if (eigenvalue?.step.length) add(mover(eigenvalue), "moved most");
  return out;
}

/**
 * The first row with a value below 0, and where its lowest is.
 * @param {Series} series
 */
function crossing(series) {
  if ("low" in series) {
    const row = series.low.findIndex((d) => d < 0);
    return [row, series.lowAt[row]];
  }
  const row = Math.floor(series.min.findIndex((d) => d < 0) / series.width);
  return row < 0 ? [-1, -1] : [row, lowest(series.min.subarray(row * series.width, (row + 1) * series.width))];
}

/** @param {Float32Array} values */
function lowest(values) {
  return values.reduce((best, v, c) => (Number.isFinite(v) && (best < 0 || v < values[best]) ? c : best), -1);
}

/**
 * The column with the largest distance between its first and its newest finite value.
 * @param {Series} series
 */
function mover(series) {
  const { first, last } = ends(series);
  let best = -1;
  let most = 0;
  for (let c = 0; c < first.length; c += 1) {
    const moved = Math.abs(last[c] - first[c]);
    if (moved > most) [best, most] = [c, moved];
  }
  return best;
}

/**
 * Columns in the order of their decay time -1 / ln |eigenvalue|, the fastest first, by a row of distances to the boundary:
 * the larger the distance, the shorter. Outside the boundary nothing decays: those are last; a column that is no number is the very last.
 * @param {Series} distance
 * @param {"end" | "start"} at
 * @returns {number[]}
 */
export function byDecay(distance, at) {
  const { width } = distance;
  const start = "low" in distance ? distance.each.first : distance.last.subarray(0, width);
  const values = at === "start" ? start : newest(distance);
  /** @param {number} c */
  const key = (c) => (Number.isFinite(values[c]) ? values[c] : -Infinity);
  return Array.from({ length: width }, (_, c) => c).sort((a, b) => (key(a) === key(b) ? a - b : key(b) - key(a)));
}
