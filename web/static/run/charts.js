// The charts of a run page: decides when each chart is drawn again, and keeps one range of steps for all charts.

/** @import { RunState } from "./view_state.js" */

import { Chart } from "../chart/chart.js";
import { findAll, given } from "../lib/dom.js";
import { enlargeable } from "../chart/enlarge.js";
import { Unreachable } from "../lib/reach.js";
import { RunFigures } from "./figures.js";
import { showLines } from "./lines.js";

export class RunCharts {
  /** @type {AbortController | null} */
  request = null;
  /** Number of series at the last call of arrange(). */
  arranged = 0;
  /** The last request of complete(). */
  completing = "";
  /** @type {(point: ClickedPoint) => boolean} returns whether a mark was clicked */
  onMark = () => false;
  /** @type {(chart: Chart, lines: string[]) => void} `lines`: what Plotly says about the point under the pointer */
  onHover = () => {};
  /** @type {(name: string) => Promise<boolean>} shows the chart of a free metric; false if there is none of this name */
  onMetric = async () => false;
  /** Called when the view has changed. */
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
    if (!entry.figure.layout.meta?.plane)
      chart.onZoom = (from, to) => {
        const { axis } = this.state;
        void (from === null || to === null ? this.zoom(null, null) : this.zoom(axis.back(from), axis.back(to), chart));
      };
    chart.onClick = (point) => this.clicked(point);
    chart.onHover = (lines) => this.onHover(chart, lines);
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
   * Draws all charts again, or only the charts of one scope, and calls `drawn` after each chart.
   * @param {((chart: Chart) => void) | null} [drawn]
   * @param {string | null} [scope] run or layer
   */
  refresh(drawn = null, scope = null) {
    this.state.pick();
    showLines(this.state.items);
    this.arrange();
    for (const chart of this.charts)
      if (!this.hides(chart) && (!scope || chart.entry.scope === scope)) chart.refresh(drawn);
    void this.complete();
  }

  // Reads the chosen lines and the chosen row order from the server, if the page has only a summary.
  async complete() {
    const { model, shown } = this.state;
    const asked = `${model.layer} ${JSON.stringify(shown)}`;
    if (model.has(shown) || asked === this.completing) return;
    this.completing = asked;
    await model.complete(shown);
    if (!(await this.refine())) this.refresh();
  }

  /**
   * Draws the new points of these series.
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

  // Shows charts of the run if their series were first recorded after the page was rendered. A chart of a layer is shown
  // if the layer has its series, and otherwise hidden.
  arrange() {
    const { stores } = this.state.model;
    this.arranged = stores.size;
    for (const chart of this.charts) {
      const figure = chart.element.closest("figure");
      const has =
        chart.entry.scope === "layer"
          ? this.state.has(chart.entry)
          : this.state.series(chart.entry).some((name) => stores.has(name)) || null;
      if (!figure || has === null || figure.hidden !== has) continue;
      figure.hidden = !has;
      if (has) chart.refresh();
    }
  }

  /**
   * Draws all charts again after the model has read new data.
   * @param {(chart: Chart) => void} drawn
   * @param {string | null} [scope] run or layer if only the charts of this scope have new data
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
   * Sets one range of steps for all charts. Visible charts show the range in the current animation frame; all charts are
   * drawn at full resolution once the data has been read.
   * @param {number | null} from null for the whole axis
   * @param {number | null} to
   * @param {Chart | null} [source] the chart that already shows the range
   */
  async zoom(from, to, source = null) {
    const { state } = this;
    const end = Math.max(state.newest, state.live.on ? (state.live.steps ?? 0) : 0);
    const whole = from === null || to === null || !(to > from) || (from <= 1 && to >= end);
    [state.view.from, state.view.to] = whole ? [null, null] : [Math.max(0, Math.floor(from)), Math.ceil(to)];
    this.request?.abort();
    state.model.window = null;
    this.onView();
    const { range } = state;
    if (range)
      for (const chart of this.charts) if (chart.visible && chart !== source && chart.onZoom) chart.show(range);
    if (!(await this.refine())) this.refresh();
  }

  /**
   * Reads the range at full resolution for all charts, unless the page already has this data.
   * @returns {Promise<boolean>} whether this call or a later call draws the charts
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
      const left = error instanceof DOMException && error.name === "AbortError"; // aborted by a later request
      if (!left && !(error instanceof Unreachable)) throw error;
    }
    return true;
  }
}
