// The figures of a run page's charts: a whole figure, or only the points that arrived after the chart was drawn.

/** @import { Chart } from "../chart/chart.js" */
/** @import { RunState } from "./view_state.js" */
/** @import { Smoothing } from "./smooth.js" */

import { bind } from "../chart/bind.js";
import { firstFrom, rows } from "./clock.js";
import { given } from "../lib/dom.js";
import { dress } from "./dress.js";
import { readout, sentenceOf } from "./readout.js";
import { colors } from "../lib/theme.js";
import { scaleOf } from "./view.js";

const FEW = 6; // a heat map with fewer eigenvalues needs whole numbers as ticks

/**
 * State of a drawn chart: the newest drawn step of each series, the span of its buckets at that time, and the smoothing
 * states; for a heat map also the first step and the number of rows of the series in each column.
 * @typedef {{steps: Map<string, number>, spans: Map<string, number>, states: Map<number, Smoothing>, first: number, per: number}} Drawn
 */

export class RunFigures {
  /** @type {Map<Chart, {settled: Drawn, tail: Drawn}>} */
  drawn = new Map();

  /** @param {RunState} state */
  constructor(state) {
    this.state = state;
  }

  /** @param {Chart} chart */
  whole(chart) {
    const { data, range, model } = this.state;
    const names = this.state.series(chart.entry);
    const { step } = data[names[0]] ?? { step: [] };
    const per = Math.max(1, Math.ceil(step.length / Math.max(200, chart.element.clientWidth))); // at most one column per pixel
    /** @type {Drawn} */
    const settled = { steps: new Map(), spans: new Map(), states: new Map(), first: step[0] ?? 0, per };
    const figure = this.dressed(chart, data, settled);
    for (const name of names) {
      const store = model.store(name);
      if (!store?.points) continue;
      settled.steps.set(name, store.data.step[store.points - 1]);
      settled.spans.set(name, store.span);
    }
    this.drawn.set(chart, {
      settled,
      tail: { ...settled, steps: new Map(settled.steps), states: new Map(settled.states) },
    });
    if (range && chart.onZoom) figure.layout.xaxis = { ...figure.layout.xaxis, range, autorange: false };
    chart.empty = !names.some((name) => data[name]?.step.length);
    chart.element.closest("figure")?.classList.toggle("empty", chart.empty);
    this.describe(chart, data);
    return figure;
  }

  /**
   * The figure of the points that arrived after the chart was last drawn, starting at the last drawn point; null if
   * the whole chart must be drawn again.
   * @param {Chart} chart
   */
  growth(chart) {
    const known = this.drawn.get(chart);
    if (!known || !chart.onZoom) return null;
    const stores = this.state.series(chart.entry).flatMap((name) => {
      const store = this.state.model.store(name);
      return store?.points ? [{ name, store }] : [];
    });
    // new cells of a heat map can cover old cells, but new lines cannot cover old lines
    const map = chart.entry.figure.data.some(({ type }) => type === "heatmap");
    const whole = !map && stores.some(({ store }) => store.span > 0); // the newest bucket still changes
    const from = whole ? known.settled : known.tail;
    /** @type {SeriesByName} */
    const data = {};
    for (const { name, store } of stores) {
      const step = from.steps.get(name);
      if (step === undefined || known.settled.spans.get(name) !== store.span) return null;
      const { data: all } = store;
      if ("low" in all) return null;
      const at = firstFrom(all.step, step);
      const begin = firstFrom(all.step, from.first);
      // a heat map starts one column before its newest drawn column, because that newest column still changes
      const grown = rows(all, map ? begin + Math.max(0, Math.floor((at - begin) / from.per) - 1) * from.per : at);
      if (grown.nonfinite.subarray(whole ? 0 : store.width * (map ? from.per : 1)).some((n) => n > 0)) return null;
      data[name] = grown;
    }
    const states = new Map(from.states);
    const figure = this.dressed(chart, data, { states, per: from.per, go: true });
    known.tail = {
      ...known.settled,
      states,
      steps: new Map(stores.map(({ name, store }) => [name, store.data.step[store.points - 1]])),
    };
    return { figure, whole };
  }

  /**
   * The chart's figure with its data, as the view shows it.
   * @param {Chart} chart
   * @param {SeriesByName} data
   * @param {{states: Map<number, Smoothing>, per: number, go?: boolean}} smoothing states, and rows per column of a heat map
   */
  dressed(
    {
      entry: {
        figure: { data: traces, layout },
      },
    },
    data,
    { per, ...smoothing },
  ) {
    const { order, items, axis, model, record } = this.state;
    const { smooth, rows: by, from } = this.state.view;
    const scale = scaleOf(this.state.view, layout.meta?.chart ?? "");
    /** @type {Layout["yaxis"]} */
    let yaxis = { ...layout.yaxis };
    const map = traces.some(({ type }) => type === "heatmap");
    if (map && order) yaxis = { ...yaxis, type: "category", title: { text: `eigenvalue, by decay time at the ${by}` } };
    else if (map && record && record.eigenvalues < FEW) yaxis = { ...yaxis, dtick: 1 };
    else if (!map && scale && !yaxis?.scaleanchor)
      yaxis = { ...yaxis, type: scale, ...(scale === "log" ? { range: undefined } : {}) };
    const figure = { data: traces, layout: { ...layout, yaxis, uirevision: `${scale} ${by} ${from}` } };
    const alerts = smoothing.go ? [] : model.alerts;
    const bound = bind(figure, data, {
      layer: model.layer,
      alerts,
      items,
      colors: colors(),
      everywhere: true,
      order,
      per,
      eigenvalues: record.eigenvalues,
      bounded: record.bounded,
    });
    return layout.meta?.plane ? bound : dress(bound, { smooth, axis, ...smoothing });
  }

  /**
   * Describes the chart's newest step in words, for screen readers.
   * @param {Chart} chart
   * @param {SeriesByName} data
   */
  describe(chart, data) {
    const id = `says-${given(chart.element, "chart")}`;
    let text = document.getElementById(id);
    if (!text) {
      text = Object.assign(document.createElement("p"), { id, className: "visually-hidden" });
      chart.element.after(text);
      chart.element.setAttribute("aria-describedby", id);
    }
    const { items, record } = this.state;
    const shown = readout(chart.entry.figure, data, {
      layer: record.id,
      items,
      step: Infinity,
      eigenvalues: record.eigenvalues,
    });
    text.textContent = sentenceOf(shown);
  }
}
