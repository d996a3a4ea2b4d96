// Which eigenvalues are drawn as lines, and in which colour.

export const MAX_LINES = 24;
export const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];

/**
 * Columns with the largest values ever, those that left the finite numbers first; ascending.
 * @param {Pick<Buckets, "width" | "max" | "nonfinite"> | Summary} data
 */
export function topEigenvalues(data, k = 8) {
  const { width } = data;
  const score = new Float64Array(width).fill(-Infinity);
  if ("low" in data) {
    const n = data.step.length;
    score.set(data.each.max);
    for (let c = 0; c < width; c += 1) if (data.kinds?.subarray(c * n, (c + 1) * n).some((kind) => kind >= 0)) score[c] = Infinity;
  } else {
    for (let i = 0; i < data.max.length; i += 1) {
      const c = i % width;
      if (data.nonfinite[i] > 0) score[c] = Infinity;
      else if (data.max[i] > score[c]) score[c] = data.max[i];
    }
  }
  const order = [...score.keys()].sort((a, b) => (score[b] === score[a] ? a - b : score[b] > score[a] ? 1 : -1));
  return order.slice(0, k).sort((a, b) => a - b);
}

/**
 * Items for bind(); a column that stays keeps the slot (colour, dash) it had in `previous`.
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
