// The numbers of one run on this page: its series by name, its alerts, and how new points get in.

import { get } from "./api.js";
import { SeriesStore } from "./store.js";
import { buckets } from "./typed.js";

const MAX_POINTS = 2000;
const MAX_VALUES = 600_000; // of one series in memory: wide layers get longer buckets

export class RunModel {
  constructor(urls, figures, layer) {
    Object.assign(this, { urls, figures, layer, stores: new Map(), alerts: [], loading: null });
  }

  // Series the charts of the current layer need, whether or not they exist yet.
  get names() {
    const wanted = Object.values(this.figures).filter((f) => f.scope === "run" || f.scope === "layer");
    return [...new Set(wanted.flatMap((f) => f.series))].map((name) => name.replace("{layer}", this.layer));
  }

  get data() {
    return Object.fromEntries([...this.stores].map(([name, store]) => [name, store.data]));
  }

  // Reads catalogue, alerts and series; returns the seq up to which all of it is known. A later call abandons this one.
  async load() {
    this.loading?.abort();
    this.loading = new AbortController();
    const { signal } = this.loading;
    const [{ series, seq }, { alerts }] = await Promise.all([get(this.urls.series, { signal }), get(this.urls.alerts, { signal })]);
    const wanted = new Set(this.names);
    const stores = new Map();
    await Promise.all(
      series.filter((s) => wanted.has(s.name) && s.points > 0).map(async ({ name, width }) => {
        const limit = pointsFor(width);
        const store = new SeriesStore(width, limit);
        const answer = await get(this.seriesUrl(name, { max_points: limit }), { signal });
        store.load(buckets(answer), answer.last_step);
        stores.set(name, store);
      }),
    );
    this.stores = stores;
    this.alerts = alerts;
    return seq;
  }

  // Names of the series that grew.
  apply({ series }) {
    const grown = [];
    for (const part of series) {
      if (!this.stores.has(part.name)) this.stores.set(part.name, new SeriesStore(part.width, pointsFor(part.width)));
      if (this.stores.get(part.name).append(buckets(part))) grown.push(part.name);
    }
    return grown;
  }

  // False when a series has to be read again.
  truncate(from) {
    this.alerts = this.alerts.filter((alert) => alert.step < from || alert.kind === "rolled_back");
    return [...this.stores.values()].map((store) => store.truncate(from)).every(Boolean);
  }

  addAlert(alert) {
    const known = this.alerts.some((a) => a.id === alert.id);
    if (!known) this.alerts.push(alert);
    return !known;
  }

  // Newest row of a series, as numbers; null when there is none.
  newest(name) {
    const store = this.stores.get(name);
    if (!store?.count) return null;
    return store.last.subarray((store.count - 1) * store.width, store.count * store.width);
  }

  // The series of one chart between two steps, at the best resolution that fits.
  async window(names, from, to, signal) {
    const known = names.filter((name) => this.stores.get(name)?.span);
    const bounds = { from_step: Math.max(1, Math.floor(from)), to_step: Math.max(1, Math.ceil(to)) };
    const parts = known.map(async (name) => {
      const max_points = pointsFor(this.stores.get(name).width);
      return [name, buckets(await get(this.seriesUrl(name, { ...bounds, max_points }), { signal }))];
    });
    return { ...this.data, ...Object.fromEntries(await Promise.all(parts)) };
  }

  seriesUrl(name, query) {
    return `${this.urls.series}/${name}?${new URLSearchParams({ format: "typed", ...query })}`;
  }
}

export function pointsFor(width) {
  return Math.max(200, Math.min(MAX_POINTS, Math.floor(MAX_VALUES / width)));
}
