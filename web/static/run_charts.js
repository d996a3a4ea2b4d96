// The charts of a run page: when each one is drawn again, and one range of steps for all of them.

/** @import { RunState } from "./run_state.js" */

import { Chart } from "./chart.js";
import { findAll, given } from "./dom.js";
import { enlargeable } from "./enlarge.js";
import { Unreachable } from "./reach.js";
import { RunFigures } from "./run_figures.js";
import { showLines } from "./run_lines.js";

export class RunCharts {
  /** @type {AbortController | null} */
  request = null;
  /** How many series there were when it was decided which charts to show. */
  arranged = 0;
  /** What complete() has asked for last. */
  completing = "";
  /** @type {(point: ClickedPoint) => boolean} whether it was a mark that was clicked */
  onMark = () => false;
  /** The view has changed. */
  onView = () => {};

  /** @param {RunState} state */
  constructor(state) {
    this.state = state;
    this.figures = new RunFigures(state);
    this.charts = findAll("[data-chart]", HTMLElement).flatMap((element) => this.mount(element));
  }

  /** @param {HTMLElement} element */
  mount(element) {
    const entry = this.state.model.figures[given(element, "chart")];
    if (entry.scope !== "run" && entry.scope !== "layer") return [];
    /** @type {Chart} */
    const chart = new Chart(element, entry, () => this.figures.whole(chart));
    if (!entry.figure.layout.meta?.plane) chart.onZoom = (from, to) => {
      const { axis } = this.state;
      void (from === null || to === null ? this.zoom(null, null) : this.zoom(axis.back(from), axis.back(to), chart));
    };
    chart.onClick = (point) => this.clicked(point);
    chart.growth = () => this.figures.growth(chart);
    enlargeable(element, entry.title);
    return [chart];
  }

  /** @param {ClickedPoint} point */
  clicked(point) {
    if (this.onMark(point) || !this.state.keep(point)) return;
    this.onView();
    this.refresh();
  }

  /**
   * Draws all charts anew, or those of one scope; `drawn` runs after each.
   * @param {((chart: Chart) => void) | null} [drawn]
   * @param {string | null} [scope] run or layer
   */
  refresh(drawn = null, scope = null) {
    this.state.pick();
    showLines(this.state.items);
    this.arrange();
    for (const chart of this.charts) if (!this.hides(chart) && (!scope || chart.entry.scope === scope)) chart.refresh(drawn);
    void this.complete();
  }

  // Lines that were chosen and another order of rows have to be read, where the page has a summary only.
  async complete() {
    const { model, shown } = this.state;
    const asked = `${model.layer} ${JSON.stringify(shown)}`;
    if (model.has(shown) || asked === this.completing) return;
    this.completing = asked;
    await model.complete(shown);
    if (!(await this.refine())) this.refresh();
  }

  /**
   * Draws what is new of these series.
   * @param {string[]} names
   * @param {((chart: Chart) => void) | null} drawn
   */
  grow(names, drawn) {
    if (!this.state.items.length) {
      this.state.pick();
      showLines(this.state.items);
    }
    if (this.state.model.stores.size !== this.arranged) this.arrange();
    for (const chart of this.charts) {
      if (!this.state.series(chart.entry).some((name) => names.includes(name))) continue;
      if (!this.state.frozen && !this.hides(chart)) chart.grow(drawn);
    }
  }

  /** @param {Chart} chart */
  hides = ({ element }) => element.closest("figure")?.hidden ?? false;

  // Shows the charts that the page left out because the run had not recorded their series when it was made, and of a layer's charts
  // exactly those whose series it has.
  arrange() {
    const { stores } = this.state.model;
    this.arranged = stores.size;
    for (const chart of this.charts) {
      const figure = chart.element.closest("figure");
      const has = chart.entry.scope === "layer" ? this.state.has(chart.entry) : this.state.series(chart.entry).some((name) => stores.has(name)) || null;
      if (!figure || has === null || figure.hidden !== has) continue;
      figure.hidden = !has;
      if (has) chart.refresh();
    }
  }

  /**
   * Begins anew with what the model has read.
   * @param {(chart: Chart) => void} drawn
   * @param {string | null} [scope] run or layer, when only those charts have something new
   */
  reset(drawn, scope = null) {
    this.request?.abort();
    this.state.model.window = null;
    this.state.items = [];
    this.completing = "";
    this.refresh(drawn, scope);
    void this.refine();
  }

  /**
   * One range for all charts: those that can be seen show it in this frame, all are drawn at full resolution once that is there.
   * @param {number | null} from null for the whole axis
   * @param {number | null} to
   * @param {Chart | null} [source] the chart that shows it already
   */
  async zoom(from, to, source = null) {
    const { state } = this;
    const end = Math.max(state.newest, state.live.on ? state.live.steps : 0);
    const whole = from === null || to === null || !(to > from) || (from <= 1 && to >= end);
    [state.view.from, state.view.to] = whole ? [null, null] : [Math.max(0, Math.floor(from)), Math.ceil(to)];
    this.request?.abort();
    state.model.window = null;
    this.onView();
    const { range } = state;
    if (range) for (const chart of this.charts) if (chart.visible && chart !== source && chart.onZoom) chart.show(range);
    if (!(await this.refine())) this.refresh();
  }

  /**
   * Reads the range at full resolution, all series of all charts, where it is not here already.
   * @returns {Promise<boolean>} whether it did, or a later one does
   */
  async refine() {
    const { model, view, live, shown, newest } = this.state;
    const { from, to } = view;
    if (from === null || to === null || !model.coarse) return false;
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    try {
      await model.zoom(from, to, { wanted: shown, open: live.on && to > newest, signal: request.signal });
      this.refresh();
    } catch (error) {
      const left = error instanceof DOMException && error.name === "AbortError"; // for a later stretch
      if (!left && !(error instanceof Unreachable)) throw error;
    }
    return true;
  }
}
