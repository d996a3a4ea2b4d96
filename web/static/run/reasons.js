// Names the eigenvalues of a layer that get a line for a reason: the eigenvalue that the verdict blames, the first
// eigenvalue outside the stability boundary, the eigenvalue nearest to the boundary, and the eigenvalue that moved most.
// The server sends the lines of the same eigenvalues (`_reasons` of server/series/overview.py; a test compares the two).

import { number } from "../lib/format.js";
import { ends, newest } from "../chart/planes.js";

/** Kind of an event in a verdict -> the reason why the event's eigenvalue gets a line. */
const HAPPENED = /** @type {Record<string, string>} */ ({
  crossing: "crossed",
  gradient_spike: "spike of its gradient",
  nonfinite: "no longer finite",
});

/**
 * @typedef {{layer?: number | null, eigenvalue?: number | null}} Place
 * @typedef {Place & {kind: string, step: number}} Happening an event of the verdict
 */

/**
 * Reasons by column. `divergence`: where the run diverged; `culprit`, `events`: from the verdict. If the verdict names
 * the first eigenvalue outside the boundary, the verdict is used, because the numbers of the page may be too coarse.
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
    add(
      column,
      `${kind === "crossing" && step === first ? "first outside" : HAPPENED[kind]} (step ${number(step, 9)})`,
    );
  }
  if (distance?.step.length) {
    const [row, column] = crossing(distance);
    if (row >= 0 && !here.some(({ kind }) => kind === "crossing"))
      add(column, `first outside (step ${number(distance.step[row])})`);
    const end = newest(distance);
    const near = lowest(end);
    if (near >= 0) add(near, end[near] < 0 ? "farthest outside" : "nearest to the boundary");
  }
  if (eigenvalue?.step.length) add(mover(eigenvalue), "moved most");
  return out;
}

/**
 * The first row with a value below 0, and the column of its lowest value.
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
 * Columns ordered by decay time -1 / ln |eigenvalue|, the shortest first. The larger the distance to the boundary, the
 * shorter the decay time. Eigenvalues outside the boundary do not decay and come after all others; non-finite
 * eigenvalues come last.
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
