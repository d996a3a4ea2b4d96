// Reads GET overview: the series of a run at screen resolution in one binary answer. Wide layers are summaries.

import { reach } from "../lib/reach.js";
import { refusal } from "../lib/api.js";
import { raw } from "../lib/typed.js";

/** @type {Record<string, typeof Float32Array | typeof Float64Array | typeof Int32Array | typeof Int8Array | typeof Uint8Array>} */
const ARRAYS = { f4: Float32Array, f8: Float64Array, i4: Int32Array, i1: Int8Array, u1: Uint8Array };

/** @typedef {{series: Series, lastStep: number}} Stretch a range of one series; `lastStep`: last step of its last bucket */

/**
 * @param {string} url
 * @param {Record<string, string | number | boolean | null>} query null omits a parameter
 * @param {AbortSignal} signal
 */
export async function readOverview(url, query, signal) {
  const given = Object.entries(query).flatMap(([key, value]) =>
    value === null || value === "" ? [] : [[key, String(value)]],
  );
  const answer = await reach(`${url}?${new URLSearchParams(given)}`, { signal });
  if (!answer.ok) throw await refusal(answer);
  return unpack(await answer.arrayBuffer(), String(query.rows ?? "index"));
}

/**
 * @param {ArrayBuffer} body length of the head, the head as JSON, then the arrays; the head describes each array as
 *   [dtype, offset, length]
 * @param {string} [order] order of a heat map's rows, as requested
 * @returns {{seq: number, found: Map<string, Stretch>}}
 */
export function unpack(body, order = "index") {
  const start = 4 + new DataView(body).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(body, 4, start - 4)));
  /** @type {Map<string, Stretch>} */
  const found = new Map();
  for (const [name, { width, last_step: lastStep, arrays: refs, ...facts }] of Object.entries(head.series)) {
    /** @param {[string, number, number]} ref */
    const array = ([dtype, at, length]) => new ARRAYS[dtype](body, start + at, length);
    const arrays = Object.fromEntries(Object.entries(refs).map(([part, ref]) => [part, array(ref)]));
    found.set(name, { series: shaped(width, arrays, { ...facts, order }), lastStep });
  }
  return { seq: head.seq, found };
}

/**
 * @param {number} width
 * @param {Record<string, any>} arrays
 * @param {Record<string, any>} facts
 * @returns {Series}
 */
function shaped(
  width,
  { step, value, min, max, last, nonfinite, low, high, median, lines, ...more },
  { drawn, ...facts },
) {
  if (value) return raw(step, width, value);
  if (!low) return { step, width, min, max, last, nonfinite: Float32Array.from(nonfinite) };
  const n = step.length;
  const { low_at: lowAt, kinds = null, below = null, heat = null } = more;
  const each = { first: more.each_first, last: more.each_last, end: more.each_end, max: more.each_max };
  const map = heat && {
    codes: heat,
    rows: facts.heat_rows,
    low: facts.heat_low,
    high: facts.heat_high,
    order: facts.order,
  };
  /** @type {Map<number, Float32Array>} */
  const ofColumn = new Map(
    drawn.map((/** @type {number} */ c, /** @type {number} */ i) => [c, lines.subarray(i * n, (i + 1) * n)]),
  );
  return { step, width, low, high, lowAt, median, lines: ofColumn, each, kinds, below, heat: map };
}
