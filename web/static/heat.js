// Eigenvalue x step as colours: log10 of the largest value of each cell, and the cells that are no number, apart.

import { kindOf, NONFINITE } from "./nonfinite.js";

const MAX_ROWS = 256;
const MAX_COLUMNS = 1000;

/**
 * @param {Buckets} series
 * @param {TraceMeta} meta
 * @returns {Partial<Trace>}
 */
export function heat(series, { field, kind }) {
  const cells = reduce(series);
  if (field === "heat_is") return only(cells, NONFINITE.indexOf(kind ?? ""));
  const { x, y, top, kinds } = cells;
  let [low, high] = [Infinity, -Infinity];
  const log = top.map((v, i) => (kinds[i] >= 0 || !(v >= 0) ? NaN : Math.log10(v)));
  for (const v of log) {
    if (!Number.isFinite(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
  }
  if (low > high) [low, high] = [0, 1];
  low = Math.max(low, high - 12); // a few zeros must not wash out the rest
  return { x, y, z: rows(log.map((v) => (v === -Infinity ? low : v)), x.length), zmin: low, zmax: high };
}

/**
 * The cells that are of this kind, and nothing else.
 * @param {ReturnType<typeof reduce>} cells
 * @param {number} kind
 */
function only({ x, y, kinds }, kind) {
  if (!kinds.includes(kind)) return { z: [], visible: false };
  const z = Float32Array.from(kinds, (k) => (k === kind ? 1 : NaN));
  return { x, y, z: rows(z, x.length), visible: true, zmin: 0, zmax: 1 };
}

/**
 * At most MAX_ROWS x MAX_COLUMNS cells (row-major), each the largest value and kind of what it covers.
 * @param {Buckets} series
 */
function reduce({ step, width, last, max, nonfinite }) {
  const [perRow, perColumn] = [Math.ceil(width / MAX_ROWS), Math.ceil(step.length / MAX_COLUMNS)];
  const [height, across] = [Math.ceil(width / perRow), Math.ceil(step.length / perColumn)];
  const top = new Float32Array(height * across).fill(NaN);
  const kinds = new Int8Array(height * across).fill(-1);
  for (let i = 0; i < step.length; i += 1) {
    for (let c = 0; c < width; c += 1) {
      const [from, at] = [i * width + c, Math.floor(c / perRow) * across + Math.floor(i / perColumn)];
      if (!(top[at] >= max[from])) top[at] = Number.isNaN(max[from]) ? top[at] : max[from];
      const kind = kindOf(last[from], nonfinite[from]);
      if (kind > kinds[at]) kinds[at] = kind;
    }
  }
  const x = Float64Array.from({ length: across }, (_, i) => step[i * perColumn]);
  const y = Float64Array.from({ length: height }, (_, i) => i * perRow);
  return { x, y, top, kinds };
}

/**
 * @param {Float32Array} flat
 * @param {number} across
 */
function rows(flat, across) {
  const out = [];
  for (let i = 0; i < flat.length; i += across) out.push(flat.subarray(i, i + across));
  return out;
}
