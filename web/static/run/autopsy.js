// The autopsy of a run: asks for one, waits for its findings, and draws them.

import { describe, get, messageOf, send } from "../lib/api.js";
import { Chart } from "../chart/chart.js";
import { find, findAll, given } from "../lib/dom.js";
import { colors } from "../lib/theme.js";
import { toast } from "../lib/toast.js";
import { counterfactualsFigure, modulesFigure, shownModules } from "./autopsy_figures.js";
import { REPLACED, replaceParts } from "./parts.js";
import { showInCaption } from "./reading.js";
import { Stream } from "./stream.js";

const PARTS = ["autopsy", "verdict", "why", "forks"]; // these parts of the page rest on the findings
const [ROW, FRAME] = [19, 110]; // pixels: a row of the chart of modules, and the space around its rows
const NONE = { step: [], loss: [] };

export class RunAutopsy {
  /** @type {AutopsyAnswer | null} */
  findings = null;
  /** @type {{step: number[], loss: number[]}} the recorded losses around the curves of the counterfactuals */
  recorded = NONE;
  shown = "";
  /** @type {Stream | null} events of the autopsy while it is queued or runs; the page's own stream has ended by then */
  stream = null;

  /**
   * @param {Record<string, ChartEntry>} entries
   * @param {{stream: string, series: string}} urls
   */
  constructor(entries, urls) {
    this.urls = urls;
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
    const { autopsy: state = "", ended = "", seq = "0" } = root?.dataset ?? {};
    if (state === "done" && this.shown !== ended) void this.read(ended);
    if (state !== "done") this.hide();
    if (state === "queued" || state === "running") this.follow(Number(seq));
    else this.unfollow();
  }

  /** @param {number} after number of the newest event that the page shows */
  follow(after) {
    if (this.stream) return;
    const replace = () => replaceParts(PARTS);
    this.stream = new Stream(this.urls.stream, {
      events: { autopsy: replace, reset: replace },
      state: () => undefined,
      // called while there is no stream: the new part of the page follows the autopsy again if it is still open
      poll: async () => {
        this.unfollow();
        await replace();
        return undefined;
      },
    });
    this.stream.open([""], after); // no series
  }

  unfollow() {
    this.stream?.close();
    this.stream = null;
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
      this.recorded = await this.readRun();
    } catch (error) {
      toast(`The autopsy could not be read: ${messageOf(error)}`, "critical");
    }
    const { modules, counterfactuals } = this.findings ?? {};
    const has = [modules?.length, counterfactuals?.some(({ lives }) => lives !== null)];
    const [group] = findAll("[data-autopsy-charts]", HTMLElement);
    group.hidden = !has.some(Boolean);
    this.charts.forEach((chart, i) => {
      const frame = chart.element.closest("figure");
      if (frame) frame.hidden = !has[i];
      if (i === 0 && modules) chart.element.style.height = `${shownModules(modules).length * ROW + FRAME}px`;
      if (has[i]) chart.refresh();
    });
  }

  /** The recorded losses from as many steps before the counterfactuals' start as they trained, up to their last step. */
  async readRun() {
    const tried = (this.findings?.counterfactuals ?? []).filter(({ lives }) => lives !== null);
    if (!tried.length) return NONE;
    const start = Math.min(...tried.map(({ from_step: step }) => step));
    const end = Math.max(...tried.map(({ step }) => step ?? start));
    const range = new URLSearchParams({ from_step: String(Math.max(1, 2 * start - end)), to_step: String(end) });
    const { step, value, last } = await get(`${this.urls.series}/train/loss?${range}`);
    return { step, loss: (value ?? last).map(Number) };
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
    const rows = findAll("[data-counterfactual]", HTMLElement);
    const named = (counterfactuals ?? []).map((one, i) => {
      const { counterfactual: label = "", line: color = "muted" } = rows[i]?.dataset ?? {};
      return { ...one, label, color };
    });
    return named.length ? counterfactualsFigure(template, named, this.recorded, colors()) : null;
  }
}
