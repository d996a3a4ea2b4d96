// Smoothing: the debiased exponential mean of a line. Gaps of the line remain gaps.

/** @typedef {{sum: number, norm: number}} Smoothing the weighted sum, and the sum of its weights (below 1) */

/**
 * s_t = weight s_{t-1} + (1 - weight) y_t over the finite values, divided by 1 - weight^t, so that the start
 * is not pulled towards 0.
 * @param {ArrayLike<number>} y
 * @param {number} weight from 0 (no smoothing) to below 1
 * @param {Smoothing} [state] state at the end of an earlier piece of the line
 * @returns {{y: Float32Array, before: Smoothing}} `before`: the state without the last value, from which the next piece continues
 */
export function smoothed(y, weight, state = { sum: 0, norm: 0 }) {
  const out = new Float32Array(y.length);
  let { sum, norm } = state;
  let before = state;
  for (let i = 0; i < y.length; i += 1) {
    before = { sum, norm };
    if (Number.isFinite(y[i])) {
      sum = weight * sum + (1 - weight) * y[i];
      norm = weight * norm + 1 - weight;
    }
    out[i] = Number.isFinite(y[i]) ? sum / norm : NaN;
  }
  return { y: out, before };
}

/**
 * Marker sizes for a line's points: 4 for a finite value between two gaps, which a line cannot show; otherwise 0.
 * @param {ArrayLike<number>} y
 * @returns {number[] | null} null if there is no such point
 */
export function lone(y) {
  let any = false;
  const sizes = Array.from(y, (v, i) => {
    const alone = Number.isFinite(v) && !Number.isFinite(y[i - 1]) && !Number.isFinite(y[i + 1]);
    any ||= alone;
    return alone ? 4 : 0;
  });
  return any ? sizes : null;
}
