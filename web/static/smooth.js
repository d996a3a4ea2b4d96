// A line with less noise: the debiased exponential mean, which leaves a gap wherever the line has one.

/** @typedef {{sum: number, norm: number}} Smoothing sum and the part of 1 that its weights make up */

/**
 * s_t = weight s_{t-1} + (1 - weight) y_t over the finite values, divided by 1 - weight^t: no pull towards 0 at the start.
 * @param {ArrayLike<number>} y
 * @param {number} weight 0 (nothing) to below 1
 * @param {Smoothing} [state] where an earlier piece of the line ended
 * @returns {{y: Float32Array, before: Smoothing}} `before`: the state without the last value, from which the line goes on
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
 * Sizes of markers for a line's points: 4 where a finite value stands between two gaps, which a line alone does not show.
 * @param {ArrayLike<number>} y
 * @returns {number[] | null} null when there is no such point
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
