// The lines of a sweep's chart, from the cells that the server has summed up. Pure functions.

import { DASHES } from "./pick.js";

/** @type {Record<string, string>} paths whose values have colours of their own */
const KINDS = { "model.reparameterization.name": "map", "model.layer": "layer" };

/**
 * One line per value of the rows, over the numbers along the columns: the median of each cell's finite runs with the distance to
 * its quartiles. A cell with lost runs is marked at the edge, whatever the others' loss.
 * @param {SweepGridAnswer} grid
 * @param {(color: string) => boolean} known whether the palette has a colour of this name
 */
export function lossLines(grid, known) {
  const order = grid.columns.values.map((value, j) => ({ value, j })).filter(({ value }) => typeof value === "number");
  order.sort((a, b) => Number(a.value) - Number(b.value));
  const step = Float64Array.from(order, ({ value }) => Number(value));
  const title = short(grid.columns.path ?? "");
  const log = step.length > 0 && step[0] > 0;
  /** @type {SeriesByName} */
  const data = {};
  /** @type {Record<string, {array: number[], arrayminus: number[]}>} */
  const spreads = {};
  /** @type {Record<string, string[]>} */
  const lost = {};
  const items = grid.rows.values.map((value, i) => {
    const key = `row-${i}`;
    const cells = order.map(({ j }) => grid.cells[i][j]);
    const last = Float32Array.from(cells, ({ loss, lost: n }) => number(loss.median) ?? (n ? NaN : 0)); // 0: nothing yet, not drawn
    const finite = last.map((v) => (v > 0 ? v : NaN));
    const nonfinite = Float32Array.from(cells, (cell) => (cell.lost ? 1 : 0));
    data[`sweep/${key}`] = { step, width: 1, min: finite, max: finite, last: finite, nonfinite };
    /** @param {"q25" | "q75"} part */
    const away = (part) => cells.map(({ loss }) => Math.abs((number(loss[part]) ?? 0) - (number(loss.median) ?? 0)));
    spreads[key] = { array: away("q75"), arrayminus: away("q25") };
    lost[key] = cells.flatMap((cell, j) => (cell.lost ? [`${value === null ? "" : labelOf(value)} ${title} ${step[j]}: ${cell.lost} of ${cell.total} lost`] : []));
    const own = `${KINDS[grid.rows.path ?? ""]}-${labelOf(value)}`;
    const look = known(own) ? { color: own, dash: DASHES[0] } : { color: `line-${i % 8}`, dash: DASHES[Math.floor(i / 8) % 6] };
    return { key, label: grid.rows.path ? labelOf(value) : "all", ...look };
  });
  return { data, items, spreads, lost, title, log };
}

/**
 * A row in a few characters: sections by their name, models by their layer and map.
 * @param {any} value
 */
function labelOf(value) {
  if (value === null || typeof value !== "object") return String(value);
  const parts = [value.name ?? value.layer, value.reparameterization?.name].filter((part) => typeof part === "string");
  return parts.join(", ") || JSON.stringify(value);
}

/** @param {string} path */
const short = (path) => (path.replace(/\.name$/, "").split(".").pop() ?? "").replaceAll("_", " ").replace(/^lr$/, "learning rate");

/** @param {JsonNumber | null} value */
function number(value) {
  return value === null || !Number.isFinite(Number(value)) ? null : Number(value);
}
