// Formats numbers, durations and times as text, and escapes text for Plotly's markup. web/formatting.py formats the same
// values in the same way on the server.

const WHOLE_BELOW = 1e9; // whole numbers below this limit are written out; larger numbers get an exponent

/**
 * @param {JsonNumber | null | undefined} value
 * @param {number} [digits]
 */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const x = Number(value);
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "+Inf" : "−Inf";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < WHOLE_BELOW) return (x || 0).toLocaleString("en-US");
  if (size < 1e-3 || size >= 1e6)
    return x
      .toExponential(Math.max(0, digits - 2))
      .replace(/(\.\d*?)0+e/, "$1e")
      .replace(".e", "e")
      .replace("e+", "e");
  return String(Number(x.toPrecision(digits)));
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds) || seconds < 0) return "–";
  if (seconds < 1) return "< 1 s";
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/**
 * Seconds until the last step; null if the speed is unknown.
 * @param {number} step
 * @param {number} steps
 * @param {number | null} stepsPerSecond
 */
export function eta(step, steps, stepsPerSecond) {
  if (stepsPerSecond === null || !(stepsPerSecond > 0) || !(steps >= step)) return null;
  return (steps - step) / stepsPerSecond;
}

/** @param {number} epochSeconds */
export function ago(epochSeconds, nowSeconds = Date.now() / 1000) {
  const past = nowSeconds - epochSeconds;
  const span = duration(Math.abs(past)).replace(/ \d+ (s|min|h)$/, "");
  if (past < -5) return `in ${span}`;
  return past < 5 ? "just now" : `${span} ago`;
}

/**
 * The first sentences of a text.
 * @param {string} text
 * @param {number} most
 */
export function sentences(text, most) {
  const parts = text.split(". ");
  return parts.slice(0, most).join(". ") + (parts.length > most ? "." : "");
}

/** @param {unknown} text */
export function escapeMarkup(text) {
  return String(text ?? "")
    .replace(/&/g, "&amp;")
    .replace(/</g, "&lt;");
}

/**
 * Parses "3, 17, 60-63" as [3, 17, 60, 61, 62, 63]; omits numbers of at least `width`.
 * @param {string} text
 * @param {number} width
 */
export function parseIndices(text, width) {
  /** @type {Set<number>} */
  const found = new Set();
  for (const part of text.split(/[\s,;]+/)) {
    const match = /^(\d+)(?:[-–](\d+))?$/.exec(part);
    if (!match) continue;
    const [low, high] = [Number(match[1]), Number(match[2] ?? match[1])];
    for (let i = low; i <= Math.min(high, width - 1) && found.size < width; i += 1) found.add(i);
  }
  return [...found].sort((a, b) => a - b);
}
