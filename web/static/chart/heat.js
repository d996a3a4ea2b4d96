// Heat map of eigenvalue x step: log10 of the largest value in each cell, and separate layers for non-finite cells.

/** @import { Cells } from "./heat_cells.js" */

import { cellsOf } from "./heat_cells.js";
import { NONFINITE } from "../lib/nonfinite.js";

const MAX_COLUMNS = 1000;

/**
 * @param {Series} series
 * @param {TraceMeta} meta
 * @param {number[] | null} [order] eigenvalues from the lowest row to the highest; if given, rows are named after them
 * @param {number} [per] number of rows of the series in one column of the map
 * @param {Series} [unless] the gradient from which a ratio is computed; if every gradient is finite, no row is marked
 * @returns {Partial<Trace>}
 */
export function heat(
  series,
  { field, kind },
  order = null,
  per = Math.ceil(series.step.length / MAX_COLUMNS),
  unless = undefined,
) {
  const cells = cellsOf(series, order, per);
  if (field === "heat_rows")
    return lostRows(
      unless && allFinite(unless) ? { ...cells, kinds: new Int8Array(cells.kinds.length).fill(-1) } : cells,
    );
  // the cells of exactly 0 are always visible, because a tail may draw such cells
  if (field === "heat_is" && kind === "zero") return only({ ...cells, kinds: cells.zeros }, 0) ?? corner(cells);
  if (field === "heat_is") return only(cells, NONFINITE.indexOf(kind ?? "")) ?? { z: [], visible: false };
  const { x, y, log, low, high } = cells;
  return { x, y, z: rows(log, x.length), zmin: low, zmax: high };
}

/** @param {Series} series */
const allFinite = (series) => ("low" in series ? !series.kinds : !series.nonfinite.some((n) => n > 0));

/**
 * The smallest part of the map that contains all cells of this kind, extended by a row or column on each side, because
 * Plotly draws each cell half way to its neighbours. If rows have names, the part has all rows, because Plotly fails on
 * a map with fewer rows than its axis.
 * @param {Pick<Cells, "x" | "y" | "kinds">} cells
 * @param {number} kind
 * @returns {Partial<Trace> | null} null if there is none
 */
function only({ x, y, kinds }, kind) {
  const across = x.length;
  let [left, right, low, high] = [across, -1, y.length, -1];
  for (let i = kinds.indexOf(kind); i >= 0; i = kinds.indexOf(kind, i + 1)) {
    const [row, column] = [Math.floor(i / across), i % across];
    [left, right, low, high] = [Math.min(left, column), Math.max(right, column), Math.min(low, row), row];
  }
  if (high < 0) return null;
  if (Array.isArray(y)) [low, high] = [0, y.length];
  [left, right, low, high] = [
    Math.max(0, left - 1),
    Math.min(across, right + 2),
    Math.max(0, low - 1),
    Math.min(y.length, high + 2),
  ];
  const z = [];
  for (let row = low; row < high; row += 1) {
    z.push(Float32Array.from(kinds.subarray(row * across + left, row * across + right), (k) => (k === kind ? 1 : NaN)));
  }
  return { x: x.slice(left, right), y: y.slice(low, high), z, visible: true, zmin: 0, zmax: 1 };
}

/** A part of the map without cells. @param {Cells} cells */
function corner({ x, y }) {
  const [across, down] = [Math.min(2, x.length), Array.isArray(y) ? y.length : Math.min(2, y.length)];
  const z = Array.from({ length: down }, () => new Float32Array(across).fill(NaN));
  return { x: x.slice(0, across), y: y.slice(0, down), z, visible: true, zmin: 0, zmax: 1 };
}

/**
 * A mark at the right edge of each row with a non-finite cell.
 * @param {Cells} cells
 */
function lostRows({ x, y, kinds }) {
  const hits = [];
  for (let row = 0; row < y.length; row += 1) {
    const i = kinds.subarray(row * x.length, (row + 1) * x.length).findIndex((kind) => kind >= 0);
    if (i >= 0)
      hits.push({ at: y[row], text: `eigenvalue ${y[row]}: ${NONFINITE[kinds[row * x.length + i]]} at step ${x[i]}` });
  }
  return {
    x: hits.map(() => 1),
    y: hits.map((hit) => hit.at),
    text: hits.map((hit) => hit.text),
    visible: hits.length > 0,
  };
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
