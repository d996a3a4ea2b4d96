// The run page: reads what is known, draws it, and follows the live stream from exactly there.

import { get } from "./api.js";
import { announce, showAlert } from "./run_alerts.js";
import { RunCharts } from "./run_charts.js";
import { isFinal, RunHeader } from "./run_header.js";
import { RunModel } from "./run_model.js";
import { Stream } from "./stream.js";
import { toast } from "./toast.js";

const root = document.querySelector("[data-run-id]");
const controls = document.querySelector("[data-controls]");
const header = new RunHeader(root);
const { figuresUrl, seriesUrl, alertsUrl, streamUrl, runUrl } = root.dataset;

const figures = await get(figuresUrl).then((answer) => answer.figures ?? answer);
const model = new RunModel({ series: seriesUrl, alerts: alertsUrl }, figures, Number(controls.elements.layer.value));
const charts = new RunCharts(model, controls);
const stream = new Stream(streamUrl, { points, alert, status, reset: reload, live, state: (s) => header.stream(s), poll });

// For measurements: the step up to which each chart is drawn, and the page, which is its loss chart while that can be seen.
function drawn(step) {
  return (chart) => {
    chart.element.dataset.step = String(step);
    if (chart !== charts.charts[0] && charts.charts[0].visible) return;
    document.documentElement.dataset.lastStep = String(step);
    performance.mark("points-drawn", { detail: { step } });
  };
}

async function reload() {
  const seq = await model.load();
  model.alerts.forEach(showAlert);
  charts.reset();
  header.numbers(model);
  const newest = Math.max(0, ...[...model.stores.values()].map((store) => store.lastStep));
  charts.refresh(null, drawn(newest));
  if (isFinal(header.state.status)) stream.end();
  else stream.open(model.names, seq);
}

function points(event) {
  const grown = model.apply(event);
  header.step(event.step, event.steps_per_second);
  header.numbers(model);
  charts.refresh(grown, drawn(event.step));
}

function alert(event) {
  if (!model.addAlert(event)) return;
  showAlert(event);
  announce(event);
  charts.refresh();
}

// What wakes the server is away, or back.
function live({ push }) {
  header.stream(push ? "live" : "slow");
}

async function status(event) {
  const before = header.state.status;
  header.status(event);
  if (event.truncated_from) {
    toast(`Steps from ${event.truncated_from} on were taken back${event.reason ? `: ${event.reason}` : ""}`, "warning");
    if (!model.truncate(event.truncated_from)) return reload();
    charts.refresh();
  }
  if (!isFinal(event.status)) return;
  stream.end();
  if (!isFinal(before)) await summary();
}

// The server writes divergence, result and environment; take its words rather than compose them again.
async function summary() {
  const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
  for (const part of document.querySelectorAll("[data-part]")) {
    const fresh = page.querySelector(`[data-part="${part.dataset.part}"]`);
    if (fresh) part.replaceWith(document.adoptNode(fresh));
  }
}

// While there is no stream: the run's row, then all that is new.
async function poll() {
  const run = await get(runUrl);
  header.status({ ...run, reason: run.status_reason });
  const seq = await model.load();
  charts.refresh();
  return seq;
}

controls.elements.layer.addEventListener("change", async (event) => {
  model.layer = Number(event.target.value);
  await reload();
});
await reload();
