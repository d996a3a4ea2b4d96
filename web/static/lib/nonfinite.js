// How non-finite numbers are written, as in stablessm_core/telemetry/nonfinite.py, and the kinds that charts
// distinguish.

export const NONFINITE = ["NaN", "Infinity", "-Infinity"];

/**
 * The index in NONFINITE of a bucket's kind; -1 if all its values are finite. If the last value is finite but another value
 * is not, the bucket counts as NaN.
 * @param {number} last
 * @param {number} nonfinite number of the bucket's values that are not finite
 */
export function kindOf(last, nonfinite) {
  if (last === Infinity) return 1;
  if (last === -Infinity) return 2;
  return nonfinite > 0 ? 0 : -1;
}

/**
 * The kind of one eigenvalue's bucket.
 * @param {Series} series
 * @param {number} row
 * @param {number} c
 */
export function kindAt(series, row, c) {
  if ("low" in series) return series.kinds ? series.kinds[c * series.step.length + row] : -1;
  return kindOf(series.last[row * series.width + c], series.nonfinite[row * series.width + c]);
}
