// Chooses the eigenvalues that are drawn as lines, and their colours.

export const MAX_LINES = 24;
export const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];

/**
 * The k columns with the largest values at any step, sorted by index; columns that became NaN or infinite are chosen
 * first.
 * @param {Pick<Buckets, "width" | "max" | "nonfinite"> | Summary} data
 * @param {number} [k]
 * @param {Pick<Buckets, "width" | "max" | "nonfinite"> | Summary} [unless] the gradient of a ratio, which decides whether a column became non-finite
 */
export function topEigenvalues(data, k = 8, unless = data) {
  const { width } = data;
  const score = new Float64Array(width).fill(-Infinity);
  if ("low" in data) {
    score.set(data.each.max);
  } else
    for (let i = 0; i < data.max.length; i += 1) if (data.max[i] > score[i % width]) score[i % width] = data.max[i];
  if ("low" in unless) {
    const n = unless.step.length;
    for (let c = 0; c < width; c += 1)
      if (unless.kinds?.subarray(c * n, (c + 1) * n).some((kind) => kind >= 0)) score[c] = Infinity;
  } else unless.nonfinite.forEach((count, i) => count > 0 && (score[i % width] = Infinity));
  const order = [...score.keys()].sort((a, b) => (score[b] === score[a] ? a - b : score[b] > score[a] ? 1 : -1));
  return order.slice(0, k).sort((a, b) => a - b);
}

/**
 * Items for bind(). A column that is also in `previous` keeps its colour and dash.
 * @param {number[]} columns
 * @param {EigenvalueItem[]} [previous]
 * @returns {EigenvalueItem[]}
 */
export function eigenvalueItems(columns, previous = []) {
  const slots = new Map(previous.map((item) => [item.column, item.slot]));
  const kept = columns.slice(0, MAX_LINES);
  const used = new Set(kept.filter((c) => slots.has(c)).map((c) => slots.get(c)));
  return kept.map((column) => {
    const slot = slots.get(column) ?? firstFree(used);
    used.add(slot);
    const look = { color: `line-${slot % 8}`, dash: DASHES[Math.floor(slot / 8) % 6] };
    return { key: String(column), column, slot, label: `eigenvalue ${column}`, ...look };
  });
}

/** @param {Set<number | undefined>} used */
function firstFree(used) {
  let slot = 0;
  while (used.has(slot)) slot += 1;
  return slot;
}
