// Status, progress and the few numbers at the top of a run page, kept up to date.

/** @import { RunModel } from "./run_model.js" */
/** @import { StreamState } from "./stream.js" */

import { find, findAll, given } from "./dom.js";
import { duration, eta, number } from "./format.js";

const FINAL = ["finished", "failed", "diverged", "cancelled"];
/** @type {Record<StreamState, string>} */
const STREAM = { live: "live", slow: "polling every 2 s", reconnecting: "reconnecting…", polling: "polling", ended: "ended" };

/** @param {string} status */
export const isFinal = (status) => FINAL.includes(status);

export class RunHeader {
  /** @param {HTMLElement} root the element that carries the run's data attributes */
  constructor(root) {
    this.title = document.title;
    this.steps = Number(given(root, "steps"));
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
      find(".status[data-status]", HTMLElement).dataset.status = status;
      this.set("status", status);
      this.set("reason", reason ?? "");
      if (changed) for (const element of findAll("[data-when]", HTMLElement)) element.hidden = !given(element, "when").split(" ").includes(status);
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
    const left = status === "running" ? eta(step, this.steps, rate) : took;
    find("progress[data-progress]", HTMLProgressElement).value = step;
    this.set("step", number(step));
    this.set("eta-label", isFinal(status) ? "Took" : "Time left");
    this.set("rate", rate ? `${number(rate, 3)} steps/s` : "–");
    this.set("eta", left === null ? "–" : duration(left));
    const percent = Math.floor((100 * step) / this.steps);
    document.title = status === "running" ? `${percent} % · ${this.title}` : this.title;
  }

  /** @param {StreamState} state */
  stream(state) {
    const chip = find("[data-stream]", HTMLElement);
    chip.dataset.stream = state;
    chip.textContent = STREAM[state];
  }

  /**
   * The newest loss, the largest ratio and the smallest distance to the boundary of the layer that is shown.
   * @param {RunModel} model
   */
  numbers(model) {
    /** @param {string} kind */
    const ofLayer = (kind) => model.newest(`ssm/${model.layer}/${kind}`);
    const [loss, ratio, distance] = [model.newest("train/loss"), ofLayer("grad_over_weight"), ofLayer("boundary_distance")];
    const accuracy = model.newest("eval/accuracy");
    this.set("loss", loss ? number(loss[0]) : "–");
    this.set("accuracy", accuracy ? `${number(100 * accuracy[0], 4)} %` : "–");
    this.set("ratio", ratio ? number(worst(ratio, Math.max), 3) : "–");
    this.set("distance", distance ? number(worst(distance, Math.min), 3) : "–");
  }
}

/**
 * Math.max and Math.min answer NaN as soon as one value is: that is what should be seen.
 * @param {Float32Array} values
 * @param {(a: number, b: number) => number} choose
 */
const worst = (values, choose) => values.reduce((a, b) => choose(a, b));
