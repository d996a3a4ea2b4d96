// The run list: keeps progress and status current while something moves, draws small loss curves, offers the comparison.

import { get, messageOf } from "./api.js";
import { find, findAll, freshPage, given } from "./dom.js";
import { duration, number } from "./format.js";
import { sparkline } from "./spark.js";
import { buckets } from "./typed.js";
import { refreshTimes } from "./times.js";

const POLL_MS = 2000;
const MAX_SPARKS = 30;

/**
 * @param {HTMLElement} row
 * @param {string} field
 * @param {string} value
 */
function setText(row, field, value) {
  const element = find(`[data-field=${field}]`, HTMLElement, row);
  if (element.textContent !== value) element.textContent = value;
}

/**
 * @param {HTMLElement} row
 * @param {RunAnswer} run
 */
function update(row, run) {
  row.dataset.statusNow = run.status;
  find(".status", HTMLElement, row).dataset.status = run.status;
  find("[data-live=status]", HTMLElement, row).textContent = run.status;
  find("progress", HTMLProgressElement, row).value = run.step;
  setText(row, "step", number(run.step));
  const waits = run.waits_for ? `· waits for ${run.waits_for}` : "";
  setText(row, "eta", run.eta_seconds === null ? waits : `· ${duration(run.eta_seconds)} left`);
  setText(row, "where", run.host ? run.host + (run.gpu_name ? ` · ${run.gpu_name}` : "") : "");
  setText(row, "alerts", run.alerts ? String(run.alerts) : "");
  find("[data-field=alerts]", HTMLElement, row).classList.toggle("bad", run.alerts > 0);
}

/**
 * Keeps the list current.
 * @param {HTMLElement} body the table's rows
 * @param {HTMLFormElement} form around the table, with the boxes that choose runs to compare
 */
function follow(body, form) {
  const rows = () => findAll("[data-run]", HTMLElement, body);
  const boxes = () => findAll("input[type=checkbox]", HTMLInputElement, form);
  const chosen = () => boxes().filter((box) => box.checked).map((box) => box.value);
  const drawSparks = (of = rows()) => Promise.all(of.slice(0, MAX_SPARKS).map((row) => drawSpark(row, given(body, "api"))));

  async function poll() {
    if (document.hidden) return;
    const were = rows().filter((row) => ["queued", "running"].includes(given(row, "statusNow")));
    /** @type {{runs: RunAnswer[]}} */
    const { runs } = await get(given(body, "listUrl"));
    const known = new Map(rows().map((row) => [row.dataset.run, row]));
    if (runs.some((run) => !known.has(String(run.id)))) return replaceRows();
    for (const run of runs) {
      const row = known.get(String(run.id));
      if (row) update(row, run);
    }
    await drawSparks(were);
  }

  // New runs: the server's own rows, with the ticks that were set.
  async function replaceRows() {
    const page = await freshPage();
    if (!page) return;
    const ticked = new Set(chosen());
    body.replaceChildren(...[...page.querySelectorAll("tbody[data-api] tr")].map((row) => document.adoptNode(row)));
    for (const box of boxes()) box.checked = ticked.has(box.value);
    refreshTimes();
    drawSparks();
  }

  form.addEventListener("change", () => {
    const bar = find("[data-compare-bar]", HTMLElement, form);
    bar.hidden = chosen().length === 0;
    find("[data-count]", HTMLElement, bar).textContent = `${chosen().length} chosen`;
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.href = `${form.action}?runs=${chosen().join(",")}`;
  });
  drawSparks();
  setInterval(() => poll().catch((error) => console.warn("the list could not be refreshed:", messageOf(error))), POLL_MS);
}

/**
 * @param {HTMLElement} row
 * @param {string} api
 */
async function drawSpark(row, api) {
  if (find("progress", HTMLProgressElement, row).value === 0) return; // nothing recorded yet
  const url = `${api}/${row.dataset.run}/series/train/loss?format=typed&max_points=48`;
  const series = await get(url).then(buckets, () => null);
  if (!series?.step.length) return;
  const loss = series.last[series.last.length - 1];
  setText(row, "loss", number(loss));
  find("[data-field=loss]", HTMLElement, row).classList.toggle("bad", !Number.isFinite(loss));
  sparkline(find("[data-spark]", SVGElement, row), series);
}

const list = document.querySelector("tbody[data-api]");
if (list instanceof HTMLElement) follow(list, find("form[data-compare]", HTMLFormElement));
