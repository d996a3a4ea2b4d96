// The summary of a series of a layer, at screen resolution: band, median, drawn lines, non-finite values, and a code for
// every cell of the heat map.

/**
 * The part of a summary from row `low` up to, but not including, row `high`.
 * @param {Summary} series
 * @param {number} low index of the first row
 * @param {number} high index after the last row
 * @returns {Summary}
 */
export function summaryRows(series, low, high) {
  const { step, width, kinds, below, heat, lines } = series;
  const n = step.length;
  /** @template {Float32Array | Float64Array | Int32Array} T @param {T} numbers @returns {T} */
  const cut = (numbers) => /** @type {T} */ (numbers.subarray(low, high));
  /** @template {Int8Array | Uint8Array} T @param {T} cells @param {number} height @returns {T} */
  const columns = (cells, height) => {
    const out = /** @type {T} */ (new /** @type {any} */ (cells.constructor)(height * (high - low)));
    for (let row = 0; row < height; row += 1)
      out.set(cells.subarray(row * n + low, row * n + high), row * (high - low));
    return out;
  };
  const bits = below && Uint8Array.from({ length: Math.ceil((width * (high - low)) / 8) });
  if (below && bits) {
    for (let c = 0; c < width; c += 1)
      for (let i = low; i < high; i += 1) if (bit(below, c * n + i)) set(bits, c * (high - low) + i - low);
  }
  return {
    ...series,
    step: cut(step),
    low: cut(series.low),
    high: cut(series.high),
    lowAt: cut(series.lowAt),
    median: cut(series.median),
    lines: new Map([...lines].map(([c, line]) => [c, cut(line)])),
    kinds: kinds && columns(kinds, width),
    below: bits,
    heat: heat && { ...heat, codes: columns(heat.codes, heat.rows.length) },
  };
}

/** @param {Uint8Array} bits @param {number} i */
export const bit = (bits, i) => (bits[i >> 3] >> (i & 7)) & 1;

/** @param {Uint8Array} bits @param {number} i */
function set(bits, i) {
  bits[i >> 3] |= 1 << (i & 7);
}

/** New points cannot be added to a summary. If the page needs more detail, it reads the summary again. */
export class SummaryStore {
  span = 1; // if a bucket has more than one step, a zoom needs more detail

  /** @param {Summary} data @param {number} lastStep */
  constructor(data, lastStep) {
    this.data = data;
    this.lastStep = lastStep;
    this.width = data.width;
    this.points = data.step.length;
  }

  append() {
    return 0;
  }

  /** @param {number} from */
  truncate(from) {
    return this.lastStep < from;
  }
}
