// The ranges of the ratios by map: a bar each, and what of them has no value.

import { bind } from "./bind.js";
import { Chart } from "./chart.js";
import { find } from "./dom.js";
import { number } from "./format.js";
import { colors } from "./theme.js";

/**
 * @param {ChartEntry} entry
 * @param {PooledRange[]} pooled
 */
export function drawRanges(entry, pooled) {
  const element = find("[data-chart=compare_ranges]", HTMLElement);
  const items = pooled.map((range) => {
    const name = range.reparameterization;
    return { ...range, run_id: null, label: `${name} (${range.runs} run${range.runs === 1 ? "" : "s"})`, color: `map-${name.split(", ")[0]}` };
  });
  new Chart(element, entry, () => bind(entry.figure, {}, { items, colors: colors() })).refresh();
  const said = find("[data-part=zero]", HTMLElement);
  const lines = pooled.filter((range) => range.finite < range.total).map(({ reparameterization, finite, total, at_zero: zero }) => {
    const other = total - finite - zero;
    const parts = [
      zero && `${number(zero, 9)} of ${number(total, 9)} ratios are infinite because the weight is exactly 0 there, where |grad| / |w| has no value; that is no instability`,
      other && `${number(other, 9)} of ${number(total, 9)} are not finite`,
    ];
    return `${reparameterization}: ${parts.filter(Boolean).join("; ")}.`;
  });
  said.textContent = lines.join(" ");
  said.hidden = !lines.length;
}
