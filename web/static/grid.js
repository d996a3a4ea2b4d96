// A sweep as a table: which values run along the rows and columns, and what each cell says. Pure functions.

import { getPath } from "./config_form.js";
import { finalLoss, mapOf } from "./run_items.js";

const WORST = ["failed", "diverged", "running", "queued", "cancelled", "finished"];
const ROWS_FIRST = "model.reparameterization.name";
const COLUMNS_FIRST = "optimizer.lr";

/**
 * [row path, column path]; a sweep over one thing has one row.
 * @param {Record<string, unknown[]>} grid
 */
export function axes(grid) {
  const paths = Object.keys(grid).filter((path) => path !== "train.seed" || Object.keys(grid).length === 1);
  const row = paths.includes(ROWS_FIRST) ? ROWS_FIRST : paths.length > 1 ? paths[0] : null;
  const rest = paths.filter((path) => path !== row);
  const column = rest.includes(COLUMNS_FIRST) ? COLUMNS_FIRST : (rest[0] ?? null);
  return [row, column];
}

/**
 * Rows of cells.
 * @param {SweepAnswer} sweep
 */
export function cells(sweep) {
  const [row, column] = axes(sweep.grid);
  /** @param {string | null} path */
  const values = (path) => (path ? sweep.grid[path] : [null]);
  return values(row).map((r) => values(column).map((c) => cell(sweep.runs.filter((run) => is(run, row, r) && is(run, column, c)))));
}

/**
 * @param {RunAnswer} run
 * @param {string | null} path
 * @param {unknown} value
 */
const is = (run, path, value) => path === null || JSON.stringify(getPath(run.config, path)) === JSON.stringify(value);

/**
 * One cell; `loss` is the mean of the finite ones, and `finite` of `total` says how many those are.
 * @param {RunAnswer[]} runs
 */
export function cell(runs) {
  const losses = runs.map(finalLoss).filter((loss) => loss !== null).filter(Number.isFinite);
  const ended = runs.filter((run) => !["queued", "running"].includes(run.status));
  const finite = ended.filter((run) => run.status === "finished" && Number.isFinite(finalLoss(run) ?? NaN)).length;
  const status = WORST.find((s) => runs.some((run) => run.status === s)) ?? "queued";
  const loss = losses.length ? losses.reduce((a, b) => a + b, 0) / losses.length : null;
  return { status, finite, total: runs.length, done: ended.length, loss, runs };
}

/**
 * Series "sweep/<map>" for the chart of final loss by learning rate; a cell with a lost run is not a number there.
 * @param {SweepAnswer} sweep
 */
export function lossByRate(sweep) {
  const maps = [...new Set(sweep.runs.map(mapOf))];
  const rates = [...new Set(sweep.runs.map((run) => run.config.optimizer.lr))].sort((a, b) => a - b);
  /** @type {SeriesByName} */
  const data = {};
  for (const map of maps) {
    const last = Float32Array.from(rates, (lr) => {
      const here = sweep.runs.filter((run) => mapOf(run) === map && run.config.optimizer.lr === lr);
      const { loss, finite, done } = cell(here);
      return done > finite ? NaN : (loss ?? 0); // 0 has no place on the logarithmic axis: not there yet
    });
    const finite = last.map((v) => (v > 0 ? v : NaN));
    const nonfinite = last.map((v) => (Number.isNaN(v) ? 1 : 0));
    data[`sweep/${map}`] = { step: Float64Array.from(rates), width: 1, min: finite, max: finite, last, nonfinite };
  }
  return data;
}
