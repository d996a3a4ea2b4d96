// The ranges of the ratios: a bar per map, and a note on ratios that are not finite.

import { bind } from "../chart/bind.js";
import { Chart } from "../chart/chart.js";
import { find } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { colors } from "../lib/theme.js";
import { rangeItems } from "./model.js";

/**
 * @param {ChartEntry} entry
 * @param {PooledRange[]} pooled
 */
export function drawRanges(entry, pooled) {
  const element = find("[data-chart=compare_ranges]", HTMLElement);
  const items = rangeItems(pooled);
  new Chart(element, entry, () => bind(entry.figure, {}, { items, colors: colors() })).refresh();
  const said = find("[data-part=zero]", HTMLElement);
  const lines = pooled
    .filter((range) => range.finite < range.total)
    .map(({ reparameterization, finite, total, at_zero: zero }) => {
      const other = total - finite - zero;
      const parts = [
        zero &&
          `${number(zero, 9)} of ${number(total, 9)} ratios are infinite because the weight is exactly 0; this is not an instability`,
        other && `${number(other, 9)} of ${number(total, 9)} are not finite`,
      ];
      return `${reparameterization}: ${parts.filter(Boolean).join("; ")}.`;
    });
  said.textContent = lines.join(" ");
  said.hidden = !lines.length;
}
