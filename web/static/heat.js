// Eigenvalue x step as colours: log10 of the largest value of each cell, and the cells that are no number, apart.

import { kindOf, NONFINITE } from "./nonfinite.js";

const MAX_ROWS = 256;
const MAX_COLUMNS = 1000;

/**
 * @param {Buckets} series
 * @param {TraceMeta} meta
 * @param {number[] | null} [order] eigenvalues from the lowest row to the highest; rows are then named by their eigenvalue
 * @returns {Partial<Trace>}
 */
export function heat(series, { field, kind }, order = null) {
  const cells = reduce(series, order);
  if (field === "heat_rows") return lostRows(cells);
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
 * A mark at the right edge of each row with a cell that is no number.
 * @param {ReturnType<typeof reduce>} cells
 */
function lostRows({ x, y, kinds }) {
  const hits = [];
  for (let row = 0; row < y.length; row += 1) {
    const i = kinds.subarray(row * x.length, (row + 1) * x.length).findIndex((kind) => kind >= 0);
    if (i >= 0) hits.push({ at: y[row], text: `eigenvalue ${y[row]}: ${NONFINITE[kinds[row * x.length + i]]} at step ${x[i]}` });
  }
  return { x: hits.map(() => 1), y: hits.map((hit) => hit.at), text: hits.map((hit) => hit.text), visible: hits.length > 0 };
}

/**
 * At most MAX_ROWS x MAX_COLUMNS cells (row-major), each the largest value and kind of what it covers.
 * @param {Buckets} series
 * @param {number[] | null} order
 */
function reduce({ step, width, last, max, nonfinite }, order) {
  const place = new Int32Array(width);
  for (let c = 0; c < width; c += 1) place[order ? order[c] : c] = c;
  const [perRow, perColumn] = [Math.ceil(width / MAX_ROWS), Math.ceil(step.length / MAX_COLUMNS)];
  const [height, across] = [Math.ceil(width / perRow), Math.ceil(step.length / perColumn)];
  const top = new Float32Array(height * across).fill(NaN);
  const kinds = new Int8Array(height * across).fill(-1);
  for (let i = 0; i < step.length; i += 1) {
    for (let c = 0; c < width; c += 1) {
      const [from, at] = [i * width + c, Math.floor(place[c] / perRow) * across + Math.floor(i / perColumn)];
      if (!(top[at] >= max[from])) top[at] = Number.isNaN(max[from]) ? top[at] : max[from];
      const kind = kindOf(last[from], nonfinite[from]);
      if (kind > kinds[at]) kinds[at] = kind;
    }
  }
  const x = Float64Array.from({ length: across }, (_, i) => step[i * perColumn]);
  const y = order
    ? Array.from({ length: height }, (_, i) => String(order[i * perRow]))
    : Float64Array.from({ length: height }, (_, i) => i * perRow);
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
