// The run page: reads what is known, draws it, and follows the live stream from exactly there.

/** @import { Chart } from "./chart.js" */

import { get } from "./api.js";
import { find, given } from "./dom.js";
import { exportable } from "./exports.js";
import { Unreachable } from "./reach.js";
import { announce, showAlert } from "./run_alerts.js";
import { RunCharts } from "./run_charts.js";
import { RunControls } from "./run_controls.js";
import { isFinal, RunHeader } from "./run_header.js";
import { RunLog } from "./run_log.js";
import { RunModel } from "./run_model.js";
import { replaceParts, showNewest } from "./run_parts.js";
import { RunSlopes } from "./run_slopes.js";
import { RunState } from "./run_state.js";
import { Stream } from "./stream.js";
import { use } from "./run_use.js";
import { toast } from "./toast.js";

const root = find("[data-run-id]", HTMLElement);
const form = find("form[data-controls]", HTMLFormElement);
/** @type {{layer?: number | null, eigenvalue?: number | null} | null} */
const divergence = JSON.parse(given(root, "divergence"));
const controls = new RunControls(form, divergence?.layer);
const { view } = controls;
const header = new RunHeader(root);
const log = new RunLog(find("[data-log]", HTMLElement));
const TELL_MS = 250;
const HISTORY = ["tracebacks", "history", "checkpoints"]; // what a change of status adds to, though the run goes on
/** @type {PointsEvent | null} */
let latest = null;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let told;
const urls = { series: given(root, "seriesUrl"), overview: given(root, "overviewUrl"), alerts: given(root, "alertsUrl") };

const model = new RunModel(urls, view.layer);
const state = new RunState(model, controls);
state.divergence = divergence;
model.ask(state.wanted, !isFinal(header.state.status)); // before anything is there that could draw it
/** @type {{figures: Record<string, ChartEntry>}} */
const { figures } = await get(given(root, "figuresUrl"));
model.figures = figures;
const charts = new RunCharts(state);
const slopes = new RunSlopes(figures, () => Boolean(state.ofLayer("weight")?.points));
const { cursor, setAxis } = use(charts, controls, reload);
exportable((chart) => state.exported(figures[chart], urls.series));
const stream = new Stream(given(root, "streamUrl"), {
  events: { points, alert, status, reset: reload, live },
  state: (how) => header.stream(how),
  poll,
});

/**
 * For measurements: the step up to which each chart is drawn, and the page, which is its loss chart while that can be seen.
 * @param {number} step
 */
function drawn(step) {
  return (/** @type {Chart} */ chart) => {
    chart.element.dataset.step = String(step);
    if (chart !== charts.charts[0] && charts.charts[0].visible) return;
    document.documentElement.dataset.lastStep = String(step);
    performance.mark("points-drawn", { detail: { step } });
  };
}

async function reload() {
  try {
    await read();
  } catch (error) {
    if (error instanceof Unreachable) return stream.lost(model.names);
    if (!(error instanceof DOMException && error.name === "AbortError")) throw error; // else another layer is read by now
  }
}

async function read() {
  state.live = { on: !isFinal(header.state.status), steps: header.steps };
  let begun = false;
  const seq = await model.load(state.wanted, state.live.on, () => {
    header.numbers(model);
    begun = view.axis === "step"; // else the axis has to be read first
    if (begun) charts.reset(drawn(state.newest), "run");
  });
  model.alerts.forEach(showAlert);
  header.numbers(model);
  await setAxis();
  charts.reset(drawn(state.newest), begun ? "layer" : null);
  if (state.newest) void slopes.show(state.record);
  if (isFinal(header.state.status)) return stream.end();
  await catchUp();
  if (isFinal(header.state.status)) return read(); // it ended meanwhile: what was read may lack its last steps
  return stream.open(model.names, seq);
}

// What became of the run since the page was written: the stream goes on from what was read and does not tell it again.
async function catchUp() {
  const run = await get(given(root, "runUrl")).catch(() => null);
  if (run) await status({ status: run.status, reason: run.status_reason, step: run.step, steps_per_second: run.steps_per_second });
}

/** @param {PointsEvent} event */
function points(event) {
  const grown = model.apply(event);
  charts.grow(grown, drawn(event.step));
  latest = event;
  told ??= setTimeout(tell, TELL_MS);
}

// The numbers of the header, four times a second at most.
function tell() {
  told = undefined;
  if (latest) header.step(latest.step, latest.steps_per_second);
  controls.learn();
  header.numbers(model);
  slopes.follow(state.record);
  if (cursor.step !== null) cursor.redraw();
  if (header.stale) void readRow();
}

/** @param {AlertAnswer} event */
function alert(event) {
  if (!model.addAlert(event)) return;
  showAlert(event);
  announce(event);
  charts.refresh();
}

let verdictOf = ""; // how many eigenvalues were outside when the verdict was written

// The extremes over all layers; the page follows one of them only.
async function readRow() {
  header.readAt = Date.now();
  const run = await get(given(root, "runUrl")).catch(() => null); // the stream's chip says when the server is away
  if (!run) return;
  header.row(run);
  const outside = String(run.unstable?.eigenvalues ?? 0);
  if (!isFinal(run.status) && outside !== verdictOf) await replaceParts(["verdict"]);
  verdictOf = outside;
}

/**
 * Whether the server learns of new points at once, or looks for them every few seconds.
 * @param {{push: boolean}} event
 */
function live({ push }) {
  header.stream(push ? "live" : "slow");
}

/** @param {StatusEvent} event */
async function status(event) {
  const before = header.state.status;
  header.status(event);
  if (event.truncated_from) {
    toast(`Steps from ${event.truncated_from} on were taken back${event.reason ? `: ${event.reason}` : ""}`, "warning");
    if (!model.truncate(event.truncated_from)) return reload();
    charts.refresh();
  }
  log.wake();
  const ended = isFinal(header.state.status);
  state.live.on = !ended;
  if (ended && before !== header.state.status) charts.refresh(drawn(state.newest));
  if (ended) stream.end();
  if (header.state.status !== before || event.truncated_from) await Promise.all([replaceParts(ended ? null : HISTORY), readRow()]);
}

/** While there is no stream: the run's row, then all that is new. @returns {Promise<number | undefined>} */
async function poll() {
  const run = await get(given(root, "runUrl"));
  header.status({ ...run, reason: run.status_reason });
  header.row(run);
  const seq = await model.load(state.wanted, !isFinal(header.state.status));
  charts.refresh();
  if (isFinal(header.state.status)) stream.end();
  return isFinal(header.state.status) ? undefined : seq;
}

showNewest();
await reload();
