// The sweep page: the grid and the chart of final losses, kept current while runs go on.

import { get } from "./api.js";
import { bind } from "./bind.js";
import { Chart } from "./chart.js";
import { number } from "./format.js";
import { axes, cells, lossByRate } from "./grid.js";
import { finalLoss } from "./run_items.js";
import { colors } from "./theme.js";

const POLL_MS = 3000;
const root = document.querySelector("[data-sweep-url]");
const { figures } = await get(root.dataset.figuresUrl);
const element = document.querySelector("[data-chart=sweep_final_loss]");
const entry = figures.sweep_final_loss;
let sweep = await get(root.dataset.sweepUrl);
const chart = new Chart(element, entry, () => {
  const data = lossByRate(sweep);
  const items = Object.keys(data).map((name) => name.slice(6)).map((map) => ({ key: map, label: map, color: `map-${map}` }));
  return bind(entry.figure, data, { items, colors: colors() });
});

function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function drawCell({ status, finite, total, loss, runs }) {
  const inside = make("a", "", { class: "cell", "data-status": status, href: runs.length === 1 ? runs[0].url : `/compare?runs=${runs.map((r) => r.id)}` });
  inside.append(make("strong", number(loss, 3)), make("span", `${finite} / ${total}`, { class: "small" }), make("span", status, { class: "small muted" }));
  const cell = make("td", "");
  cell.append(inside);
  return cell;
}

function drawGrid() {
  const [row, column] = axes(sweep.grid);
  const table = document.querySelector("[data-grid]");
  const head = make("tr", "");
  head.append(make("th", [row, column].filter(Boolean).map((p) => p.replace(/\.name$/, "").split(".").pop()).join(" \\ ")));
  for (const value of column ? sweep.grid[column] : ["all"]) head.append(make("th", String(value)));
  const lines = cells(sweep).map((line, i) => {
    const tr = make("tr", "");
    tr.append(make("th", row ? String(sweep.grid[row][i]) : "", { scope: "row" }), ...line.map(drawCell));
    return tr;
  });
  table.querySelector("thead").replaceChildren(head);
  table.querySelector("tbody").replaceChildren(...lines);
  table.hidden = false;
}

function drawRows() {
  for (const run of sweep.runs) {
    const row = document.querySelector(`[data-run="${run.id}"]`);
    row.querySelector(".status").dataset.status = run.status;
    row.querySelector("[data-live=status]").textContent = run.status;
    row.querySelector("progress").value = run.step;
    row.querySelector("[data-field=loss]").textContent = number(finalLoss(run));
  }
  const statuses = Object.entries(sweep.statuses).map(([s, n]) => make("span", `${n} ${s}`, { class: "status", "data-status": s }));
  document.querySelector("[data-statuses]").replaceChildren(...statuses.flatMap((s) => [s, " "]));
}

function draw() {
  drawGrid();
  drawRows();
  chart.refresh();
}

async function poll() {
  if (document.hidden || !sweep.runs.some((run) => ["queued", "running"].includes(run.status))) return;
  sweep = await get(root.dataset.sweepUrl);
  draw();
}

draw();
setInterval(() => poll().catch((error) => console.warn("the sweep could not be refreshed:", error.message)), POLL_MS);
