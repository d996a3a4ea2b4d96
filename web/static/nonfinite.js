// The one spelling of numbers that JSON lacks, as in stablessm_core/nonfinite.py, and the kinds the charts tell apart.

export const NONFINITE = ["NaN", "Infinity", "-Infinity"];

/**
 * Index in NONFINITE of a bucket: a bucket that has recovered counts as NaN. -1 when it is finite throughout.
 * @param {number} last
 * @param {number} nonfinite how many of the bucket's values are not finite
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
