// The numbers of one run on this page: its series by name, its alerts, how new points get in, and what is read again.

/** @import { Read, Stores, Wanted } from "./run_stores.js" */

import { get } from "./api.js";
import { grow, holds, query, readStores } from "./run_stores.js";
import { SeriesStore } from "./store.js";
import { SummaryStore } from "./summary.js";

export class RunModel {
  /** @type {Stores} */
  stores = new Map();
  /** A stretch at full resolution, in their stead; `open`: it goes on with new points. @type {{stores: Stores, open: boolean} | null} */
  window = null;
  /** @type {AlertAnswer[]} */
  alerts = [];
  /** @type {AbortController | null} */
  loading = null;
  /** What has come since a stretch was asked for. @type {PointsEvent[] | null} */
  missed = null;
  /** @type {{scalars: Promise<Read>, layer: Promise<Read>, alerts: Promise<{alerts: AlertAnswer[]}>} | null} */
  asked = null;
  /** @type {Record<string, ChartEntry>} */
  figures = {};

  /**
   * @param {{series: string, overview: string, alerts: string}} urls
   * @param {string} layer the record that is shown
   */
  constructor(urls, layer) {
    this.urls = urls;
    this.layer = layer;
  }

  // Series the charts of the current layer need, whether or not they exist yet.
  get names() {
    const wanted = Object.values(this.figures).filter((f) => f.scope === "run" || f.scope === "layer");
    return [...new Set(wanted.flatMap((f) => f.series))].map((name) => name.replace("{layer}", this.layer));
  }

  /** @param {string} name */
  store(name) {
    return this.window?.stores.get(name) ?? this.stores.get(name);
  }

  /** @returns {SeriesByName} */
  get data() {
    const all = new Map([...this.stores, ...(this.window?.stores ?? [])]);
    return Object.fromEntries([...all].map(([name, store]) => [name, store.data]));
  }

  /**
   * Asks for scalars, layer and alerts, which load() awaits. A later call abandons this one.
   * @param {Wanted} wanted
   * @param {boolean} live whether there will be new points
   */
  ask(wanted, live) {
    this.loading?.abort();
    this.loading = new AbortController();
    const { signal } = this.loading;
    const scalars = this.read({ part: "scalars" }, signal);
    const layer = this.read({ part: "layer", ...query(wanted), reasons: true, each: live }, signal);
    /** @type {Promise<{alerts: AlertAnswer[]}>} */
    const alerts = get(this.urls.alerts, { signal });
    for (const answer of [scalars, layer, alerts]) answer.catch(() => {}); // whoever awaits them hears of it
    this.asked = { scalars, layer, alerts };
    return this.asked;
  }

  /**
   * @param {Wanted} wanted
   * @param {boolean} live
   * @param {() => void} early called when all but the layer is there, unless something is shown already
   * @returns {Promise<number>} the sequence number up to which all of it is known
   */
  async load(wanted, live, early = () => {}) {
    const { scalars, layer, alerts } = this.asked ?? this.ask(wanted, live);
    this.asked = null;
    const [first, known] = await Promise.all([scalars, alerts]);
    if (!this.stores.size) {
      [this.stores, this.alerts] = [first.stores, known.alerts];
      early();
    }
    const second = await layer;
    this.stores = new Map([...first.stores, ...second.stores]);
    this.alerts = known.alerts;
    return Math.min(first.seq, second.seq);
  }

  /**
   * Reads the layer again where it is shown as a summary that lacks something of what is wanted.
   * @param {Wanted} wanted
   */
  async complete(wanted) {
    const { layer } = this;
    const { stores } = await this.read({ part: "layer", ...query(wanted) }, new AbortController().signal);
    if (layer !== this.layer) return;
    for (const [name, store] of stores) if (this.stores.get(name) instanceof SummaryStore) this.stores.set(name, store);
  }

  /** @param {Wanted} wanted whether all of it is in what was read */
  has(wanted) {
    return holds(this.stores, wanted) && (!this.window || holds(this.window.stores, wanted));
  }

  /** Whether a part of the run can be shown at a better resolution. */
  get coarse() {
    return [...this.stores.values()].some((store) => store.span > 0);
  }

  /**
   * Reads a stretch at the best resolution that fits, all series at once.
   * @param {number} from
   * @param {number} to
   * @param {{wanted: Wanted, open: boolean, signal: AbortSignal}} how `open`: new points will belong to it
   */
  async zoom(from, to, { wanted, open, signal }) {
    const bounds = { from_step: Math.max(1, Math.floor(from)), to_step: Math.max(1, Math.ceil(to)) };
    /** @type {PointsEvent[]} */
    const missed = (this.missed = []);
    try {
      const { stores } = await this.read({ part: "all", ...bounds, ...query(wanted), each: open }, signal);
      this.window = { stores, open };
      if (open) for (const event of missed) grow(stores, event);
    } finally {
      if (this.missed === missed) this.missed = null;
    }
  }

  /**
   * @param {Record<string, string | number | boolean | null>} asked
   * @param {AbortSignal} signal
   */
  read(asked, signal) {
    return readStores(this.urls.overview, { layer: this.layer, ...asked }, signal);
  }

  /**
   * Adds the points of an event of the live stream.
   * @param {PointsEvent} event
   * @returns {string[]} names of the series that grew
   */
  apply(event) {
    this.missed?.push(event);
    if (this.window?.open) grow(this.window.stores, event);
    return grow(this.stores, event);
  }

  /**
   * Drops what was recorded from this step on.
   * @param {number} from
   * @returns {boolean} false when a series has to be read again
   */
  truncate(from) {
    this.alerts = this.alerts.filter((alert) => alert.step < from || alert.kind === "rolled_back");
    const stores = [...this.stores.values(), ...(this.window?.stores.values() ?? [])];
    return stores.map((store) => store.truncate(from)).every(Boolean);
  }

  /**
   * @param {AlertAnswer} alert
   * @returns {boolean} whether it was new
   */
  addAlert(alert) {
    const known = this.alerts.some((a) => a.id === alert.id);
    if (!known) this.alerts.push(alert);
    return !known;
  }

  /**
   * Newest value of a scalar; null when there is none.
   * @param {string} name
   */
  newest(name) {
    const store = this.stores.get(name);
    return store instanceof SeriesStore ? (store.newest()?.[0] ?? null) : null;
  }
}
