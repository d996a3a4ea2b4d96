// The values of a sweep's axis as a person writes them: a list, JSON, or ranges such as `0-4` and `1e-4..1e-1 log 4`.
// stablessm_core/spec/axis_values.py parses the same texts on the server (a test compares the two).

const NUMBER = String.raw`[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?`;
const INTEGERS = /^(\d+)\s*(?:-|\.\.)\s*(\d+)$/;
const SPACED = new RegExp(String.raw`^(${NUMBER})\s*\.\.\s*(${NUMBER})\s+(log|linear)\s+(\d+)$`, "i");
const PLAIN = new RegExp(`^${NUMBER}$`, "i");
const MAX_VALUES = 2000;
const DIGITS = 10;

/**
 * The values in the text; a text that is no number, range or JSON stays text.
 * @param {string} text
 * @returns {unknown[]}
 */
export function axisValues(text) {
  try {
    return JSON.parse(`[${text}]`);
  } catch {
    const parts = text.split(",").map((part) => part.trim());
    return parts.filter(Boolean).flatMap(valuesOf).slice(0, MAX_VALUES);
  }
}

/**
 * @param {string} part
 * @returns {unknown[]}
 */
function valuesOf(part) {
  const whole = INTEGERS.exec(part);
  if (whole && whole[1].length < 10 && whole[2].length < 10) {
    const [first, last] = [Number(whole[1]), Number(whole[2])];
    if (first <= last && last < first + MAX_VALUES)
      return Array.from({ length: last - first + 1 }, (_, i) => first + i);
  }
  const found = SPACED.exec(part);
  if (found && found[4].length < 6) {
    const numbers = spaced(Number(found[1]), Number(found[2]), found[3].toLowerCase(), Number(found[4]));
    if (numbers.length) return numbers;
  }
  if (part === "true" || part === "false") return [part === "true"];
  if (part === "null") return [null];
  return [PLAIN.test(part) && Number.isFinite(Number(part)) ? Number(part) : part];
}

/**
 * `count` numbers from `first` to `last`; empty if there is no such range.
 * @param {number} first
 * @param {number} last
 * @param {string} kind
 * @param {number} count
 */
function spaced(first, last, kind, count) {
  if (count < 2 || count > MAX_VALUES || !Number.isFinite(first) || !Number.isFinite(last)) return [];
  if (kind === "log" && !(first > 0 && last > 0)) return [];
  return Array.from({ length: count }, (_, i) => {
    const share = i / (count - 1);
    const number =
      kind === "log"
        ? 10 ** (Math.log10(first) * (1 - share) + Math.log10(last) * share)
        : first * (1 - share) + last * share;
    return Number(number.toPrecision(DIGITS));
  });
}
