// The cells of a heat map. If there are many eigenvalues or steps, each cell covers several values and shows the largest
// value.

import { kindOf } from "../lib/nonfinite.js";

const MAX_ROWS = 256;
const [ZERO, LOWEST, HIGHEST, FIRST_KIND] = [1, 2, 251, 253]; // cell codes as in server/series/heat.py; 0: no value

/**
 * `zeros`: 0 where every value of the cell is exactly 0, otherwise -1.
 * @typedef {{x: Float64Array, y: Float64Array | string[], log: Float32Array, kinds: Int8Array, zeros: Int8Array, low: number, high: number}} Cells
 */

/** Cache of the cells, because several traces of a figure share them. @type {WeakMap<Series, {cells: Cells, order: number[] | null, per: number}>} */
const known = new WeakMap();

/**
 * @param {Series} series
 * @param {number[] | null} order
 * @param {number} per number of rows of the series in one column of the map
 */
export function cellsOf(series, order, per) {
  const before = known.get(series);
  if (before && before.order === order && before.per === per) return before.cells;
  const cells = "low" in series ? decoded(series, order !== null, per) : shaded(reduce(series, order, per));
  known.set(series, { cells, order, per });
  return cells;
}

/**
 * @param {ReturnType<typeof reduce>} cells
 * @returns {Cells}
 */
function shaded({ x, y, top, kinds }) {
  let [low, high] = [Infinity, -Infinity];
  const log = top.map((v, i) => (kinds[i] >= 0 || !(v > 0) ? NaN : Math.log10(v)));
  const zeros = Int8Array.from(top, (v, i) => (kinds[i] < 0 && v === 0 ? 0 : -1));
  for (const v of log) {
    if (!Number.isFinite(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
  }
  if (low > high) [low, high] = [0, 1];
  low = Math.max(low, high - 12); // at most 12 decades, so that a few tiny values do not flatten the colours of all other values
  return { x, y, log, kinds, zeros, low, high };
}

/**
 * @param {Summary} series with the codes of a heat map
 * @param {boolean} named whether rows are named after eigenvalues
 * @param {number} per
 * @returns {Cells}
 */
function decoded({ step, heat: map }, named, per) {
  if (!map) throw new TypeError("this range was requested without a heat map");
  const { codes, rows: columns, low, high } = map;
  const shades = Float32Array.from({ length: 256 }, (_, code) =>
    code < LOWEST || code > HIGHEST ? NaN : low + ((code - LOWEST) / (HIGHEST - LOWEST)) * (high - low),
  );
  const across = Math.ceil(step.length / per);
  const [log, kinds] = [new Float32Array(columns.length * across), new Int8Array(columns.length * across)];
  const zeros = new Int8Array(kinds.length).fill(-1);
  for (let row = 0, at = 0; row < columns.length; row += 1) {
    for (let i = 0; i < step.length; i += per, at += 1) {
      let code = 0; // a cell shows the largest value of `per` rows of the series
      for (let k = i; k < i + per && k < step.length; k += 1) code = Math.max(code, codes[row * step.length + k]);
      log[at] = shades[code];
      kinds[at] = Math.max(-1, code - FIRST_KIND);
      if (code === ZERO) zeros[at] = 0;
    }
  }
  const x = evened(step.filter((_, i) => i % per === 0));
  return { x, y: named ? columns.map(String) : Float64Array.from(columns), log, kinds, zeros, low, high };
}

/**
 * Makes the first and the last column as wide as the other columns if all other columns have equal widths. Plotly draws
 * columns of equal width as one image, but columns of different widths cell by cell.
 * @param {Float64Array} x
 */
function evened(x) {
  const [gap, end] = [x[2] - x[1], x.length - 1];
  if (end < 3 || !x.every((v, i) => i < 2 || i === end || v - x[i - 1] === gap)) return x;
  [x[0], x[end]] = [x[1] - gap, x[end - 1] + gap];
  return x;
}

/**
 * At most MAX_ROWS rows of cells (row-major); each cell has the largest value and the largest kind that it covers.
 * @param {Buckets} series
 * @param {number[] | null} order
 * @param {number} perColumn
 */
function reduce({ step, width, last, max, nonfinite }, order, perColumn) {
  const place = new Int32Array(width);
  for (let c = 0; c < width; c += 1) place[order ? order[c] : c] = c;
  const perRow = Math.ceil(width / MAX_ROWS);
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
