// The chart of one free metric. It reads its series when it comes into view, and again when the run has logged new values.

/** @import { RunState } from "./view_state.js" */

import { bind } from "../chart/bind.js";
import { Chart } from "../chart/chart.js";
import { enlargeable } from "../chart/enlarge.js";
import { get } from "../lib/api.js";
import { number } from "../lib/format.js";
import { colors } from "../lib/theme.js";
import { buckets } from "../lib/typed.js";

const POINTS = 1000;
const MARKED = 200; // a chart with more points has no markers, because they would touch each other

export class MetricChart {
  /** @type {Buckets | null} */
  data = null;
  visible = false;
  stale = true;
  reading = false;

  /**
   * @param {string} name
   * @param {{entry: ChartEntry, urls: {series: string, figure: string}, state: RunState}} of `entry`: the chart of any metric
   */
  constructor(name, { entry, urls, state }) {
    this.name = name;
    this.state = state;
    this.entry = entry;
    this.url = `${urls.series}/${name.split("/").map(encodeURIComponent).join("/")}`;
    this.last = Object.assign(document.createElement("span"), { className: "muted small grow" });
    this.plot = Object.assign(document.createElement("div"), { className: "plot low", role: "group" });
    this.plot.setAttribute("aria-label", name);
    this.figure = Object.assign(document.createElement("figure"), { className: "card" });
    this.figure.dataset.metric = name;
    this.figure.append(this.caption(urls.figure), this.plot);
    this.chart = new Chart(this.plot, entry, () => this.build());
    enlargeable(this.plot, name);
  }

  /** @param {string} figureUrl */
  caption(figureUrl) {
    const caption = document.createElement("figcaption");
    const title = Object.assign(document.createElement("h3"), { textContent: this.name, title: this.name });
    const nothing = Object.assign(document.createElement("span"), {
      className: "nothing small",
      textContent: "no data yet",
    });
    /** @param {string} text @param {string} href */
    const link = (text, href) => {
      const made = Object.assign(document.createElement("a"), {
        className: "export small",
        textContent: text,
        href,
        download: "",
      });
      made.setAttribute("aria-label", `${text} of ${this.name}`);
      return made;
    };
    const picture = `${figureUrl}?${new URLSearchParams({ metric: this.name, format: "pdf" })}`;
    caption.append(
      title,
      this.last,
      nothing,
      link("CSV", `${this.url}?format=csv&download=true`),
      link("PDF", picture),
    );
    return caption;
  }

  /** @param {JsonNumber | null} value */
  newest(value) {
    this.last.textContent = number(value);
  }

  /** @param {boolean} visible */
  see(visible) {
    this.visible = visible;
    void this.read();
  }

  outdated() {
    this.stale = true;
    void this.read();
  }

  // Reads the series if the chart is in view and has not read the newest values.
  async read() {
    if (!this.visible || !this.stale || this.reading) return;
    this.reading = true;
    this.stale = false;
    try {
      this.data = buckets(await get(`${this.url}?format=typed&max_points=${POINTS}`));
      this.chart.refresh();
    } catch {
      this.stale = true; // the next change reads again
      return;
    } finally {
      this.reading = false;
    }
    if (this.stale) await this.read(); // values arrived meanwhile
  }

  build() {
    const { data } = this;
    if (!data) return null;
    const { layout, data: traces } = this.entry.figure;
    const scale = this.state.view.scale;
    /** @type {Figure} */
    const figure = {
      data: traces.map((trace) => ({ ...trace, ...mode(trace, data), meta: { ...trace.meta, series: this.name } })),
      layout: {
        ...layout,
        meta: { chart: "metric", alerts: [this.name] },
        yaxis: { ...layout.yaxis, ...(scale ? { type: scale } : {}) },
      },
    };
    this.chart.empty = !data.step.length;
    this.figure.classList.toggle("empty", this.chart.empty);
    return bind(figure, { [this.name]: data }, { alerts: this.state.model.alerts, colors: colors() });
  }
}

/** @param {Trace} trace @param {Buckets} data */
const mode = (trace, { step }) => (trace.meta.field === "last" && step.length > MARKED ? { mode: "lines" } : {});
