// Keeps the status, the progress and the numbers at the top of a run page up to date.

/** @import { RunModel } from "./model.js" */
/** @import { StreamState } from "./stream.js" */

import { find, findAll, given } from "../lib/dom.js";
import { duration, eta, number } from "../lib/format.js";
import { isFinal, showStatus, statusText } from "../lib/status.js";

/** Numbers of the run's row that are extremes over all layers and steps of the run. */
const EXTREMES = /** @type {const} */ ([
  "largest_ratio",
  "largest_relative_step",
  "nearest_distance",
  "overflow_budget",
]);
/** @type {Record<StreamState, string>} */
const STREAM = {
  live: "live",
  slow: "polling every 2 s",
  reconnecting: "reconnecting…",
  polling: "polling",
  ended: "ended",
};

export class RunHeader {
  /** @param {HTMLElement} root the element with the run's data attributes */
  constructor(root) {
    this.label = given(root, "label");
    this.said = find("[data-live=status]", HTMLElement).textContent.trim();
    /** @type {number | null} null: the total is unknown, so there is no bar and no estimate of the end */
    this.steps = Number(root.dataset.steps) || null;
    const { status = "", step, rate, started, finished } = root.dataset;
    this.state = { status, step: Number(step), rate: Number(rate) || null };
    this.times = { started: Number(started) || null, finished: Number(finished) || null };
    this.progress();
  }

  /**
   * @param {string} name
   * @param {string} text
   */
  set(name, text) {
    for (const element of document.querySelectorAll(`[data-live="${name}"]`)) element.textContent = text;
  }

  /** @param {StatusEvent} event */
  status({ status, reason, step, steps_per_second: rate }) {
    if (step !== undefined) this.state.step = step;
    if (rate !== undefined) this.state.rate = rate ?? this.state.rate;
    if (status) {
      const changed = this.state.status !== status;
      if (changed && status === "running") this.times.started ??= Date.now() / 1000;
      if (changed && isFinal(status)) this.times.finished = Date.now() / 1000;
      this.state.status = status;
      if (changed) this.badge({ status, unstable: null });
      this.set("reason", reason ?? "");
      if (changed)
        for (const element of findAll("[data-when]", HTMLElement))
          element.hidden = !given(element, "when").split(" ").includes(status);
    }
    this.progress();
  }

  /**
   * @param {number} step
   * @param {number | null} rate
   */
  step(step, rate) {
    this.state.rate = rate ?? this.state.rate;
    this.state.step = Math.max(this.state.step, step);
    this.progress();
  }

  progress() {
    const { status, step, rate } = this.state;
    const { started, finished } = this.times;
    const took = started && isFinal(status) ? (finished ?? Date.now() / 1000) - started : null;
    const left = status === "running" ? (this.steps === null ? null : eta(step, this.steps, rate)) : took;
    for (const bar of findAll("progress[data-progress]", HTMLProgressElement)) bar.value = step;
    this.set("step", number(step));
    this.set("rate", rate ? `${number(rate, 3)} steps/s` : "–");
    const unknown = this.steps === null ? this.soFar() : "–";
    this.set("eta", left === null ? unknown : isFinal(status) ? `took ${duration(left)}` : `${duration(left)} left`);
    const far = this.steps === null ? `step ${number(step)}` : `${Math.floor((100 * step) / this.steps)} %`;
    document.title = [status === "running" ? far : this.said, this.label, "StableSSM"].join(" · ");
  }

  /** The speed and the time since the start of a running run whose end nobody knows. */
  soFar() {
    const { status, rate } = this.state;
    const { started } = this.times;
    if (status !== "running") return "";
    const speed = rate ? [`${number(rate, 3)} steps/s`] : [];
    const since = started ? [`for ${duration(Date.now() / 1000 - started)}`] : [];
    return [...speed, ...since].join(" · ");
  }

  /** @param {StreamState} state */
  stream(state) {
    const chip = find("[data-stream]", HTMLElement);
    chip.dataset.stream = state;
    chip.textContent = STREAM[state];
  }

  /**
   * The newest losses and accuracy.
   * @param {RunModel} model
   */
  numbers(model) {
    for (const [name, series] of Object.entries({ loss: "train/loss", eval_loss: "eval/loss" })) {
      const loss = model.newest(series);
      if (loss !== null) this.set(name, number(loss));
      for (const shown of findAll(`[data-live=${name}]`, HTMLElement))
        shown.classList.toggle("bad", loss !== null && !Number.isFinite(loss));
    }
    const accuracy = model.newest("eval/accuracy");
    if (accuracy === null) return;
    this.set("accuracy", `${number(100 * accuracy, 4)} %`);
    for (const part of findAll("[data-known=accuracy]", HTMLElement)) part.hidden = false;
  }

  /**
   * Shows the run's row: the extremes over all layers and steps, and the duration of a run that has ended.
   * @param {RunAnswer} run
   */
  row(run) {
    this.badge(run);
    for (const name of EXTREMES) this.set(name, number(run[name], 3));
    const nearest = Number(run.nearest_distance);
    if (nearest < 0) this.set("nearest_distance", number(-nearest, 3));
    this.set("nearest_title", nearest < 0 ? "Farthest outside" : "Nearest to boundary");
    this.times = { started: run.started_at, finished: run.finished_at };
    this.progress();
  }

  /** @param {import("../lib/status.js").Shown} run */
  badge(run) {
    this.said = statusText(run, document.querySelector(".status[data-worse]") !== null);
    for (const text of findAll("[data-live=status]", HTMLElement)) {
      const badge = text.closest("[data-status]");
      if (badge instanceof HTMLElement) showStatus(badge, run);
    }
  }
}
