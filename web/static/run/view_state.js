// What a run page currently shows: the view and the axis, the numbers within the view's range, and the eigenvalues that
// have lines.

/** @import { Axis } from "./clock.js" */
/** @import { RunModel } from "./model.js" */
/** @import { Wanted } from "./stores.js" */

import { rowsBetween, STEPS } from "./clock.js";
import { parseIndices } from "../lib/format.js";
import { eigenvalueItems, MAX_LINES, topEigenvalues } from "../lib/pick.js";
import { byDecay, reasons } from "./reasons.js";
import { holdsEigenvalues, recordOf } from "./records.js";
import { extent } from "./stores.js";
import { verdictNames } from "./verdict.js";
import { scaleOf } from "./view.js";

const ROOM = 500; // minimum number of steps on the axis of a live chart

export class RunState {
  /** @type {EigenvalueItem[]} the eigenvalues drawn as lines */
  items = [];
  /** @type {number[] | null} order of the heat map's rows */
  order = null;
  /** @type {Axis} */
  axis = STEPS;
  /** Whether the run will still get points, and its number of steps; null if this is unknown. @type {{on: boolean, steps: number | null}} */
  live = { on: false, steps: 0 };
  /** @type {{layer?: number | null, eigenvalue?: number | null} | null} where the run diverged */
  divergence = null;

  /**
   * @param {RunModel} model
   * @param {{view: View, records: LayerRecord[]}} controls
   */
  constructor(model, controls) {
    this.model = model;
    this.controls = controls;
    this.view = controls.view;
  }

  /** The record that is shown. */
  get record() {
    return recordOf(this.controls.records, this.model.layer);
  }

  /** The layer whose eigenvalues are shown; -1 if the record holds other weights of a layer. */
  get layer() {
    return holdsEigenvalues(this.record) ? this.record.layer : -1;
  }

  /**
   * Whether the shown record has a series of the chart; null while the record's series are unknown.
   * @param {ChartEntry} entry
   */
  has({ figure }) {
    const head = `ssm/${this.model.layer}/`;
    const stored = [...this.model.stores.keys()].filter((name) => name.startsWith(head));
    const known = new Set([...stored, ...this.record.kinds.map((kind) => head + kind)]);
    return known.size
      ? figure.data.some(({ meta }) => known.has((meta.series ?? "").replace("{layer}", this.model.layer)))
      : null;
  }

  /** @param {string} kind kind of a series of the shown layer */
  ofLayer(kind) {
    return this.model.stores.get(`ssm/${this.model.layer}/${kind}`);
  }

  /** @param {ChartEntry} entry */
  series(entry) {
    return entry.series.map((name) => name.replace("{layer}", this.model.layer));
  }

  /**
   * What an exported file of this chart shows, and the URLs of the chart's data.
   * @param {ChartEntry} entry
   * @param {string} seriesUrl
   * @returns {import("../lib/exports.js").Shown}
   */
  exported(entry, seriesUrl) {
    const { from, to, layer, smooth, axis, rows } = this.view;
    if (entry.scope === "theory") return { view: { layer, maps: this.record.map } };
    const ofLayer = entry.scope === "layer";
    const eigenvalues = ofLayer ? this.items.map(({ column }) => column).join(",") : null;
    const view = {
      layer: ofLayer ? layer : null,
      eigenvalues,
      from_step: from,
      to_step: to,
      y: scaleOf(this.view, entry.figure.layout.meta?.chart ?? ""),
    };
    const stretch = from === null || to === null ? "" : `&from_step=${from}&to_step=${to}`;
    const known = this.series(entry).filter((name) => this.data[name]?.step.length);
    const data = known.map((name) => ({ name, href: `${seriesUrl}/${name}?format=csv&download=true${stretch}` }));
    const own = smooth || axis !== "step" || rows !== "index";
    return {
      view,
      data,
      note: own ? "Files contain the recorded numbers over steps, not smoothed, by eigenvalue number." : "",
    };
  }

  get newest() {
    return Math.max(0, ...[...this.model.stores.values()].map((store) => store.lastStep));
  }

  /** True if new points do not change the shown charts. */
  get frozen() {
    const { window } = this.model;
    return (window !== null && !window.open) || (this.view.to !== null && this.view.to < this.newest);
  }

  /** @returns {SeriesByName} what the charts show, within the range */
  get data() {
    const { data } = this.model;
    const { from, to } = this.view;
    if (from === null || to === null) return data;
    return Object.fromEntries(Object.entries(data).map(([name, series]) => [name, rowsBetween(series, from, to)]));
  }

  /** @returns {[number, number] | null} range of the horizontal axis; null: there is at most one step */
  get range() {
    const { from, to } = this.view;
    const { on, steps } = this.live;
    if (from !== null && to !== null) return [this.axis.of(from), this.axis.of(to)];
    const span = on ? null : extent(this.model.stores);
    if (!on) return span && [this.axis.of(span[0]), this.axis.of(span[1])];
    if (steps === null) return [0, this.axis.of(Math.max(1, this.newest))];
    const round = 10 ** Math.floor(Math.log10(Math.max(10, this.newest))) / 4;
    return [
      0,
      this.axis.of(Math.max(1, Math.min(steps, Math.max(ROOM, Math.ceil((1.2 * this.newest) / round) * round)))),
    ];
  }

  /** @returns {Wanted} what is requested before any series is known */
  get wanted() {
    const { rows, top, eigenvalues } = this.view;
    const { eigenvalues: width } = this.record;
    const { culprit, events } = verdictNames();
    const named = [this.divergence, culprit, ...events].filter((place) => place?.layer === this.layer);
    const asked = [...parseIndices(eigenvalues, width), ...named.map((place) => place?.eigenvalue ?? -1)].filter(
      (c) => c >= 0 && c < width,
    );
    return { eigenvalues: [...new Set(asked)], top: Number(top), rows };
  }

  /** @returns {Wanted} what is drawn */
  get shown() {
    return { eigenvalues: this.items.map(({ column }) => column), top: 0, rows: this.view.rows };
  }

  // Chooses the lines: eigenvalues that the user named, eigenvalues that have a reason (see reasons.js), and the k
  // eigenvalues with the largest ratios.
  pick() {
    const [distance, eigenvalue] = [this.ofLayer("boundary_distance"), this.ofLayer("eigenvalue")];
    const ranked = this.ofLayer("grad_over_weight") ?? eigenvalue; // there are no ratios if nothing is trained
    const { rows, top, eigenvalues } = this.view;
    this.order = distance?.points && (rows === "end" || rows === "start") ? byDecay(distance.data, rows) : null;
    if (!ranked?.points) return;
    const asked = parseIndices(eigenvalues, ranked.width);
    const why = reasons({
      distance: distance?.data,
      eigenvalue: eigenvalue?.data,
      layer: this.layer,
      divergence: this.divergence,
      ...verdictNames(),
    });
    const columns = [
      ...new Set([
        ...asked,
        ...why.keys(),
        ...topEigenvalues(ranked.data, Number(top), this.ofLayer("gradient")?.data),
      ]),
    ].slice(0, MAX_LINES);
    const items = eigenvalueItems(
      columns.sort((a, b) => a - b),
      this.items,
    );
    this.items = items.map((item) => ({ ...item, note: why.has(item.column) ? ` ${why.get(item.column)}` : "" }));
  }

  /**
   * Adds the eigenvalue of a clicked row or line to the chosen eigenvalues.
   * @param {ClickedPoint} point
   * @returns {boolean} whether a row or a line was clicked
   */
  keep(point) {
    const line = this.items.find((item) => point.data.name === `λ ${item.key}${item.note ?? ""}`);
    const column = point.data.type === "heatmap" ? Math.round(Number(point.y)) : line?.column;
    if (column === undefined) return false;
    const known = parseIndices(this.view.eigenvalues, this.ofLayer("weight")?.width ?? this.record.eigenvalues);
    this.view.eigenvalues = [...new Set([...known, column])].join(", ");
    return true;
  }
}
