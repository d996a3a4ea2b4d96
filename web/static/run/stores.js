// Reads ranges of a run's series in one request. The series of large layers are summaries; new points can be added to
// all other series.

/** @import { Stretch } from "./overview.js" */

import { readOverview } from "./overview.js";
import { SeriesStore } from "./store.js";
import { SummaryStore } from "../chart/summary.js";
import { buckets } from "../lib/typed.js";

const POINTS = 1000; // number of buckets per request: about one per pixel of a chart's width
const MAX_POINTS = 2000;
const MAX_VALUES = 600_000; // maximum number of values of one series in memory, so wide layers get longer buckets

/**
 * What the charts of a layer need: the eigenvalues that always have lines, the number `top` of further lines for the
 * eigenvalues with the largest ratios, and the order of the heat map's rows.
 * @typedef {{eigenvalues: number[], top: number, rows: string}} Wanted
 * @typedef {Map<string, SeriesStore | SummaryStore>} Stores
 * @typedef {{seq: number, stores: Stores}} Read all data up to sequence number `seq`
 */

/**
 * @param {string} url
 * @param {Record<string, string | number | boolean | null>} asked
 * @param {AbortSignal} signal
 * @returns {Promise<Read>}
 */
export async function readStores(url, asked, signal) {
  const { seq, found } = await readOverview(url, { points: POINTS, ...asked }, signal);
  return { seq, stores: new Map([...found].map(([name, one]) => [name, stored(one)])) };
}

/**
 * The steps that the charts of an ended run show: from before the first recorded step to a little after the last; null if
 * there is at most one step.
 * @param {Stores} stores
 * @returns {[number, number] | null}
 */
export function extent(stores) {
  const all = [...stores.values()];
  const last = Math.max(0, ...all.map(({ lastStep }) => lastStep));
  const first = Math.min(last, ...all.map(({ data }) => data.step[0] ?? last));
  return last > first ? [Math.max(0, first - 1), last + (last - first) / 50] : null;
}

/**
 * Whether the stores contain everything in `wanted`.
 * @param {Stores} stores
 * @param {Wanted} wanted
 */
export function holds(stores, { eigenvalues, rows }) {
  return [...stores.values()].every(({ data }) => {
    if (!("low" in data)) return true;
    return eigenvalues.every((c) => c >= data.width || data.lines.has(c)) && (data.heat?.order ?? rows) === rows;
  });
}

/**
 * @param {Stores} stores
 * @param {PointsEvent} event
 */
export function grow(stores, { series }) {
  const grown = [];
  for (const part of series) {
    const store = stores.get(part.name) ?? new SeriesStore(part.width, pointsFor(part.width));
    stores.set(part.name, store);
    if (store.append(buckets(part))) grown.push(part.name);
  }
  return grown;
}

/** @param {Stretch} stretch */
function stored({ series, lastStep }) {
  if ("low" in series) return new SummaryStore(series, lastStep);
  const store = new SeriesStore(series.width, pointsFor(series.width));
  store.load(series, lastStep);
  return store;
}

/** @param {Wanted} wanted */
export const query = ({ eigenvalues, top, rows }) => ({ eigenvalues: eigenvalues.join(",") || null, top, rows });

/** @param {number} width */
function pointsFor(width) {
  return Math.max(200, Math.min(MAX_POINTS, Math.floor(MAX_VALUES / width)));
}
