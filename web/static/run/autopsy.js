// The autopsy of a run: asks for one, waits for its findings, and draws them.

import { describe, get, messageOf, send } from "../lib/api.js";
import { Chart } from "../chart/chart.js";
import { find, findAll, given } from "../lib/dom.js";
import { colors } from "../lib/theme.js";
import { toast } from "../lib/toast.js";
import { counterfactualsFigure, modulesFigure, shownModules } from "./autopsy_figures.js";
import { REPLACED, replaceParts } from "./parts.js";
import { showInCaption } from "./reading.js";

const POLL_MS = 5000;
const TRIES = 6; // polls for the autopsy of a diverged run, which may be queued after the status of the run has changed
const PARTS = ["autopsy", "verdict", "why", "forks"]; // these parts of the page rest on the findings
const [ROW, FRAME] = [19, 110]; // pixels: a row of the chart of modules, and the space around its rows

export class RunAutopsy {
  /** @type {AutopsyAnswer | null} */
  findings = null;
  shown = "";
  tries = TRIES;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  timer = undefined;

  /** @param {Record<string, ChartEntry>} entries */
  constructor(entries) {
    this.charts = findAll("[data-autopsy-charts] [data-chart]", HTMLElement).map((element) => {
      const name = given(element, "chart");
      const chart = new Chart(element, entries[name], () => this.figure(name, entries[name].figure));
      const frame = element.closest("figure");
      chart.onHover = (hovered) =>
        frame && showInCaption(frame, hovered.length ? { step: null, readings: [], hovered } : null);
      return chart;
    });
    document.addEventListener("submit", (event) => void this.ask(event));
    addEventListener(REPLACED, () => this.update());
    this.update();
  }

  /** The element with the state of the autopsy; null while the run trains. */
  get root() {
    const root = document.querySelector("[data-autopsy]");
    return root instanceof HTMLElement ? root : null;
  }

  /** Called when the server has rendered the part of the page again. */
  update() {
    const { root } = this;
    if (!root) return;
    clearTimeout(this.timer);
    const { autopsy: state = "", expected, ended = "" } = root.dataset;
    if (state === "done" && this.shown !== ended) void this.read(ended);
    if (state !== "done") this.hide();
    const open = state === "queued" || state === "running";
    if (open || (state === "none" && expected !== undefined && (this.tries -= 1) >= 0))
      this.timer = setTimeout(() => void this.poll(state), POLL_MS);
  }

  /** @param {string} before the state that the page shows */
  async poll(before) {
    const { root } = this;
    if (!root) return;
    const state = document.hidden ? before : await get(given(root, "url")).then((a) => a.state, () => before); // prettier-ignore
    if (state === before) this.update();
    else await replaceParts(PARTS);
  }

  /** @param {SubmitEvent} event */
  async ask(event) {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || !form.matches("[data-autopsy-form]") || !this.root) return;
    event.preventDefault();
    const step = find("input[name=step]", HTMLInputElement, form).value;
    try {
      await send("POST", given(this.root, "url"), step ? { step: Number(step) } : {});
      await replaceParts(PARTS);
    } catch (error) {
      toast(describe(error), "critical");
    }
  }

  /** @param {string} ended when the autopsy ended, which tells it from an earlier one */
  async read(ended) {
    this.shown = ended;
    try {
      this.findings = await get(given(/** @type {HTMLElement} */ (this.root), "url"));
    } catch (error) {
      toast(`The autopsy could not be read: ${messageOf(error)}`, "critical");
    }
    const { modules, counterfactuals } = this.findings ?? {};
    const [group] = findAll("[data-autopsy-charts]", HTMLElement);
    group.hidden = false;
    const has = [modules?.length, counterfactuals?.some(({ lives }) => lives !== null)];
    this.charts.forEach((chart, i) => {
      const frame = chart.element.closest("figure");
      if (frame) frame.hidden = !has[i];
      if (i === 0 && modules) chart.element.style.height = `${shownModules(modules).length * ROW + FRAME}px`;
      if (has[i]) chart.refresh();
    });
  }

  hide() {
    this.shown = "";
    for (const group of findAll("[data-autopsy-charts]", HTMLElement)) group.hidden = true;
    for (const { element } of this.charts) element.closest("figure")?.setAttribute("hidden", "");
  }

  /**
   * @param {string} name
   * @param {Figure} template
   */
  figure(name, template) {
    const { modules, counterfactuals } = this.findings ?? {};
    if (name === "autopsy_modules") return modules?.length ? modulesFigure(template, modules, colors()) : null;
    const labels = findAll("[data-counterfactual]", HTMLElement).map((row) => given(row, "counterfactual"));
    const named = (counterfactuals ?? []).map((one, i) => ({ ...one, label: labels[i] ?? "", color: `line-${i % 8}` }));
    return named.length ? counterfactualsFigure(template, named, colors()) : null;
  }
}
