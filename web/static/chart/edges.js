// Reductions over all eigenvalues of a step: the band from the smallest to the largest value, and the median.

/**
 * The lower and the upper edge of the band. They have no gaps, because a filled area would bridge every gap. At a step without
 * a finite edge, both edges repeat an earlier value, so the band has zero height there. On a logarithmic axis, values of zero
 * or less are replaced by the smallest positive value.
 * @param {Series} series
 * @param {boolean} log
 * @returns {[Float32Array, Float32Array]}
 */
export function band(series, log) {
  const { step, width } = series;
  const low = "low" in series ? series.low.slice() : extreme(series.min, step.length, width, (a, b) => a < b);
  const high = "low" in series ? series.high.slice() : extreme(series.max, step.length, width, (a, b) => a > b);
  if (log) {
    let floor = Infinity;
    for (const edge of [low, high]) for (const v of edge) if (v > 0 && v < floor) floor = v;
    for (const edge of [low, high]) edge.forEach((v, i) => v <= 0 && (edge[i] = floor));
  }
  /** @param {number} i */
  const known = (i) => Number.isFinite(low[i]) && Number.isFinite(high[i]);
  let before = low.findIndex((_, i) => known(i));
  if (before < 0) return [low, high];
  for (let i = 0; i < low.length; i += 1) {
    if (known(i)) before = i;
    else low[i] = high[i] = low[before];
  }
  return [low, high];
}

/**
 * @param {Float32Array} values
 * @param {number} n
 * @param {number} width
 * @param {(a: number, b: number) => boolean} better
 */
function extreme(values, n, width, better) {
  const out = new Float32Array(n).fill(NaN);
  for (let i = 0; i < n * width; i += 1) {
    const row = (i / width) | 0;
    if (Number.isNaN(out[row]) || better(values[i], out[row])) out[row] = values[i];
  }
  return out;
}

/**
 * @param {Series} series
 * @returns {Float32Array}
 */
export function median(series) {
  if ("low" in series) return series.median.slice();
  const { step, width, last } = series;
  return Float32Array.from(step, (_, i) => {
    const finite = last
      .subarray(i * width, (i + 1) * width)
      .filter(Number.isFinite)
      .sort();
    const n = finite.length;
    return n ? (finite[(n - 1) >> 1] + finite[n >> 1]) / 2 : NaN;
  });
}
