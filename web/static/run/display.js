// Updates the header, the charts, the alerts and the log of the run page when the run changes.

/** @import { Chart } from "../chart/chart.js" */
/** @import { RunControls } from "./controls.js" */
/** @import { RunPage } from "./page.js" */
/** @import { StreamState } from "./stream.js" */
/** @import { RunState } from "./view_state.js" */

import { find, given } from "../lib/dom.js";
import { exportable } from "../lib/exports.js";
import { toast } from "../lib/toast.js";
import { announce, showAlert } from "./alerts.js";
import { RunAutopsy } from "./autopsy.js";
import { RunCharts } from "./charts.js";
import { RunLog } from "./log.js";
import { RunMetrics } from "./metrics.js";
import { replaceParts, showNewest } from "./parts.js";
import { RunSlopes } from "./slopes.js";
import { showSentences } from "./verdict.js";
import { wireControls } from "./wire_controls.js";

const HEADER_MS = 250;

export class RunDisplay {
  /** @type {PointsEvent | null} */
  latest = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  timer = undefined;
  runChartsShown = false;
  replace = replaceParts;
  verdict = showSentences;

  /**
   * @param {HTMLElement} root
   * @param {{page: RunPage, state: RunState, controls: RunControls, header: import("./header.js").RunHeader}} of
   */
  constructor(root, { page, state, controls, header }) {
    const { figures } = state.model;
    this.page = page;
    this.state = state;
    this.model = state.model;
    this.controls = controls;
    this.header = header;
    this.log = new RunLog(find("[data-log]", HTMLElement));
    this.charts = new RunCharts(state);
    this.slopes = new RunSlopes(figures, () => Boolean(state.ofLayer("weight")?.points));
    this.metrics = new RunMetrics(find("[data-metrics]", HTMLElement), {
      entry: figures.metric,
      seriesUrl: given(root, "seriesUrl"),
      state,
    });
    this.charts.onMetric = (name) => this.metrics.reveal(name);
    this.autopsy = new RunAutopsy(figures, { stream: given(root, "streamUrl"), series: given(root, "seriesUrl") });
    const { cursor, setAxis } = wireControls(this.charts, controls, () => page.load());
    this.cursor = cursor;
    this.setAxis = setAxis;
    exportable((chart) => state.exported(figures[chart], given(root, "seriesUrl")));
    showNewest();
  }

  /**
   * For performance measurements: stores the step up to which each chart is drawn. The step of the page is the step of
   * the loss chart if that chart is visible, otherwise the step of the chart drawn last.
   * @param {number} step
   */
  noteDrawn(step) {
    const [loss] = this.charts.charts;
    return (/** @type {Chart} */ chart) => {
      chart.element.dataset.step = String(step);
      if (chart !== loss && loss.visible) return;
      document.documentElement.dataset.lastStep = String(step);
      performance.mark("points-drawn", { detail: { step } });
    };
  }

  reading() {
    this.state.live = { on: this.page.open, steps: this.header.steps };
    this.runChartsShown = false;
  }

  /** Called when the series of the whole run have been read, but not yet the series of the layer. */
  showRun() {
    this.header.numbers(this.model);
    if (this.state.view.axis !== "step") return; // the series from which the axis is computed must be read first
    this.runChartsShown = true;
    this.charts.reset(this.noteDrawn(this.state.newest), "run");
  }

  async showAll() {
    this.model.alerts.forEach(showAlert);
    this.header.numbers(this.model);
    await this.setAxis();
    this.charts.reset(this.noteDrawn(this.state.newest), this.runChartsShown ? "layer" : null);
    if (this.state.newest) void this.slopes.show(this.state.record);
  }

  refresh() {
    this.metrics.changed();
    this.charts.refresh();
  }

  /**
   * @param {string[]} names names of the series that grew
   * @param {PointsEvent} event
   */
  grow(names, event) {
    this.charts.grow(names, this.noteDrawn(event.step));
    if (event.metrics) this.metrics.changed();
    this.latest = event;
    this.timer ??= setTimeout(() => this.showLatest(), HEADER_MS);
  }

  // Updates the numbers of the header, at most four times a second.
  showLatest() {
    this.timer = undefined;
    if (this.latest) this.header.step(this.latest.step, this.latest.steps_per_second);
    this.controls.learn();
    this.header.numbers(this.model);
    this.slopes.follow(this.state.record);
    if (this.cursor.step !== null) this.cursor.redraw();
    if (document.hidden) return;
    if (this.page.rowIsOld) void this.page.readRow();
    if (this.page.verdictIsOld) void this.page.readVerdict();
  }

  /** @param {AlertAnswer} alert a new alert */
  alert(alert) {
    showAlert(alert);
    announce(alert);
    this.charts.refresh();
  }

  /** @param {StreamState} how */
  connection(how) {
    this.header.stream(how);
  }

  /** @param {StatusEvent} event */
  status(event) {
    this.header.status(event);
  }

  /** @param {RunAnswer} run */
  row(run) {
    this.header.row(run);
  }

  /** @param {number} from @param {string} reason */
  undone(from, reason) {
    toast(`Steps from ${from} on were undone${reason ? `: ${reason}` : ""}`, "warning");
  }

  /** Called when the server has sent the run's status. @param {boolean} ended whether the run has just ended */
  wake(ended) {
    this.log.wake();
    this.state.live.on = this.page.open;
    if (ended) this.charts.refresh(this.noteDrawn(this.state.newest));
  }
}
