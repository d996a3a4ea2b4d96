// Ticks of a logarithmic axis that spans less than two decades, where Plotly writes single digits such as 2 and 5.
// web/log_ticks.py computes the same ticks on the server (a test compares the two).

const DECADES = 2;
const WANTED = 5; // number of ticks on an axis below one decade

/**
 * The settings of an axis that shows the values from `low` to `high`; empty if Plotly's own ticks are readable.
 * @param {number} low
 * @param {number} high
 * @returns {Record<string, any>}
 */
export function logTicks(low, high) {
  if (!(low > 0 && low < high && high < Infinity) || Math.log10(high / low) >= DECADES) return {};
  /** @type {[number, number][]} each value, with the step that decides how many digits are written */
  const ticks = [];
  if (high / low >= 10) {
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1)
      for (const m of [1, 2, 5]) ticks.push([m * 10 ** e, 10 ** e]);
  } else {
    const step = nice((high - low) / WANTED);
    for (let k = Math.ceil(low / step); k <= Math.floor(high / step); k += 1) ticks.push([k * step, step]);
  }
  const shown = ticks.filter(([value]) => high / low < 10 || (low <= value && value <= high));
  return {
    tickmode: "array",
    tickvals: shown.map(([value]) => value),
    ticktext: shown.map(([value, step]) => text(value, step)),
  };
}

/** The smallest of 1, 2 and 5 times a power of ten that is at least `rough`. @param {number} rough */
function nice(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5].map((m) => m * power).find((step) => step >= rough) ?? 10 * power;
}

/**
 * The value with the digits that the step needs, such as 0.25, 1200 or 2.5e-7.
 * @param {number} value
 * @param {number} step
 */
function text(value, step) {
  const digits = -Math.floor(Math.log10(step) + 1e-9);
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  if (exponent >= -4 && exponent <= 5) return value.toFixed(Math.max(0, digits));
  return `${(value / 10 ** exponent).toFixed(Math.max(0, exponent + digits))}e${exponent}`;
}
