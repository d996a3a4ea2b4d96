// The sweep page: the grid and the chart of final losses, kept current while runs go on.

import { describe, get, messageOf, send } from "./api.js";
import { bind } from "./bind.js";
import { Chart } from "./chart.js";
import { find, given } from "./dom.js";
import { number } from "./format.js";
import { axes, cells, lossByRate } from "./grid.js";
import { finalLoss } from "./run_items.js";
import { colors } from "./theme.js";
import { toast } from "./toast.js";

const POLL_MS = 3000;
const root = find("[data-sweep-url]", HTMLElement);
/** @type {{figures: Record<string, ChartEntry>}} */
const { figures } = await get(given(root, "figuresUrl"));
const entry = figures.sweep_final_loss;
/** @type {SweepAnswer} */
let sweep = await get(given(root, "sweepUrl"));
const chart = new Chart(find("[data-chart=sweep_final_loss]", HTMLElement), entry, () => {
  const data = lossByRate(sweep);
  const maps = Object.keys(data).map((name) => name.slice("sweep/".length));
  const items = maps.map((map) => ({ key: map, label: map, color: `map-${map}` }));
  return bind(entry.figure, data, { items, colors: colors() });
});

/**
 * @param {string} tag
 * @param {string} text
 * @param {Record<string, string>} [attributes]
 */
function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** @param {ReturnType<typeof import("./grid.js").cell>} cell */
function drawCell({ status, finite, total, loss, runs }) {
  const href = runs.length === 1 ? runs[0].url : `/compare?runs=${runs.map((r) => r.id)}`;
  const inside = make("a", "", { class: "cell", "data-status": status, href });
  inside.append(make("strong", number(loss, 3)), make("span", `${finite} / ${total}`, { class: "small" }), make("span", status, { class: "small muted" }));
  const cell = make("td", "");
  cell.append(inside);
  return cell;
}

/** @param {string} path */
const shortName = (path) => path.replace(/\.name$/, "").split(".").pop();

function drawGrid() {
  const [row, column] = axes(sweep.grid);
  const table = find("[data-grid]", HTMLElement);
  const head = make("tr", "");
  head.append(make("th", [row, column].flatMap((path) => (path ? [shortName(path)] : [])).join(" \\ ")));
  for (const value of column ? sweep.grid[column] : ["all"]) head.append(make("th", String(value)));
  const lines = cells(sweep).map((line, i) => {
    const tr = make("tr", "");
    tr.append(make("th", row ? String(sweep.grid[row][i]) : "", { scope: "row" }), ...line.map(drawCell));
    return tr;
  });
  find("thead", HTMLElement, table).replaceChildren(head);
  find("tbody", HTMLElement, table).replaceChildren(...lines);
  table.hidden = false;
}

/** @param {RunAnswer} run */
function evalLoss(run) {
  const loss = run.result?.eval_loss;
  return loss === undefined || loss === null ? null : Number(loss);
}

/** @param {RunAnswer} run */
function whereDiverged({ divergence }) {
  const known = ["step", "layer", "eigenvalue"].filter((part) => typeof divergence?.[part] === "number");
  return known.map((part) => `${part} ${divergence?.[part]}`).join(", ");
}

function drawRows() {
  for (const run of sweep.runs) {
    const row = find(`[data-run="${run.id}"]`, HTMLElement);
    find(".status", HTMLElement, row).dataset.status = run.status;
    find("[data-live=status]", HTMLElement, row).textContent = run.status;
    find("progress", HTMLProgressElement, row).value = run.step;
    find("[data-field=loss]", HTMLElement, row).textContent = number(finalLoss(run));
    find("[data-field=eval_loss]", HTMLElement, row).textContent = number(evalLoss(run));
    find("[data-field=diverged]", HTMLElement, row).textContent = whereDiverged(run);
  }
  const statuses = Object.entries(sweep.statuses).map(([s, n]) => make("span", `${n} ${s}`, { class: "status", "data-status": s }));
  find("[data-statuses]", HTMLElement).replaceChildren(...statuses.flatMap((s) => [s, " "]));
}

function draw() {
  drawGrid();
  drawRows();
  chart.refresh();
}

async function poll() {
  if (document.hidden || !sweep.runs.some((run) => ["queued", "running"].includes(run.status))) return;
  sweep = await get(given(root, "sweepUrl"));
  draw();
}

const rename = find("form[data-rename]", HTMLFormElement);
rename.addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = find("[name=name]", HTMLInputElement, rename).value.trim();
  try {
    await send("PATCH", given(rename, "rename"), { name: name || null });
    location.reload();
  } catch (error) {
    toast(describe(error), "critical");
  }
});

draw();
setInterval(() => poll().catch((error) => console.warn("the sweep could not be refreshed:", messageOf(error))), POLL_MS);
