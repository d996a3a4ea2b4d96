// The run list: keeps progress and status current while something moves, draws small loss curves, offers the comparison.

import { get } from "./api.js";
import { duration, number } from "./format.js";
import { sparkline } from "./spark.js";
import { buckets } from "./typed.js";
import { refreshTimes } from "./times.js";

const POLL_MS = 2000;
const MAX_SPARKS = 30;
const body = document.querySelector("tbody[data-api]");
const form = document.querySelector("[data-compare]");
const rows = () => [...body.querySelectorAll("[data-run]")];
const moving = (row) => ["queued", "running"].includes(row.dataset.statusNow);

function text(row, field, value) {
  const element = row.querySelector(`[data-field=${field}]`);
  if (element && element.textContent !== value) element.textContent = value;
}

function update(row, run) {
  row.dataset.statusNow = run.status;
  row.querySelector(".status").dataset.status = run.status;
  row.querySelector("[data-live=status]").textContent = run.status;
  row.querySelector("progress").value = run.step;
  text(row, "step", number(run.step));
  const waits = run.waits_for ? `· waits for ${run.waits_for}` : "";
  text(row, "eta", run.eta_seconds === null ? waits : `· ${duration(run.eta_seconds)} left`);
  text(row, "alerts", run.alerts ? String(run.alerts) : "");
  row.querySelector("[data-field=alerts]").classList.toggle("bad", run.alerts > 0);
}

async function spark(row) {
  if (row.querySelector("progress").value === 0) return; // nothing recorded yet
  const url = `${body.dataset.api}/${row.dataset.run}/series/train/loss?format=typed&max_points=48`;
  const series = await get(url).then(buckets, () => null);
  if (!series?.step.length) return;
  const loss = series.last[series.last.length - 1];
  text(row, "loss", number(loss));
  row.querySelector("[data-field=loss]").classList.toggle("bad", !Number.isFinite(loss));
  sparkline(row.querySelector("[data-spark]"), series);
}

async function poll() {
  if (document.hidden) return;
  const was = rows().filter(moving);
  const { runs } = await get(body.dataset.listUrl);
  const known = new Map(rows().map((row) => [row.dataset.run, row]));
  if (runs.some((run) => !known.has(String(run.id)))) return replaceRows();
  for (const run of runs) if (known.has(String(run.id))) update(known.get(String(run.id)), run);
  await Promise.all(was.slice(0, MAX_SPARKS).map(spark));
}

// New runs: the server's own rows, with the ticks that were set.
async function replaceRows() {
  const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
  const ticked = new Set(chosen());
  body.replaceChildren(...[...page.querySelectorAll("tbody[data-api] tr")].map((row) => document.adoptNode(row)));
  for (const box of form.querySelectorAll("input[type=checkbox]")) box.checked = ticked.has(box.value);
  refreshTimes();
  for (const row of rows().slice(0, MAX_SPARKS)) spark(row);
}

const chosen = () => [...form.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value);

if (body) {
  form.addEventListener("change", () => {
    const bar = form.querySelector("[data-compare-bar]");
    bar.hidden = chosen().length === 0;
    bar.querySelector("[data-count]").textContent = `${chosen().length} chosen`;
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.href = `${form.action}?runs=${chosen().join(",")}`;
  });
  for (const row of rows().slice(0, MAX_SPARKS)) spark(row);
  setInterval(() => poll().catch((error) => console.warn("the list could not be refreshed:", error.message)), POLL_MS);
}
