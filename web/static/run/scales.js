// A button beside each chart's title that makes the chart's vertical axis logarithmic or linear.

/** @import { Chart } from "../chart/chart.js" */
/** @import { RunCharts } from "./charts.js" */
/** @import { RunControls } from "./controls.js" */

import { given } from "../lib/dom.js";
import { scaleOf, withScale } from "./view.js";

/**
 * @param {RunCharts} charts
 * @param {RunControls} controls
 * @returns {() => void} updates the buttons from the view
 */
export function scaleButtons({ charts }, controls) {
  const scaled = charts.filter(
    ({ entry: { figure } }) => !figure.layout.yaxis?.scaleanchor && !figure.data.some(({ type }) => type === "heatmap"),
  );
  const buttons = scaled.map((chart) => {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet" });
    const name = given(chart.element, "chart");
    button.addEventListener("click", () =>
      controls.set("scales", withScale(controls.view.scales, name, other(scale(chart)))),
    );
    chart.element.closest("figure")?.querySelector("figcaption")?.append(button);
    return { chart, button };
  });
  /** @param {Chart} chart */
  const scale = ({ element, entry }) =>
    scaleOf(controls.view, given(element, "chart")) || entry.figure.layout.yaxis?.type || "linear";
  const show = () => {
    for (const { chart, button } of buttons) {
      const now = scale(chart);
      button.textContent = now === "log" ? "log" : "lin";
      button.title = `The axis is ${WORDS[now]}; press for ${WORDS[other(now)]}`;
      button.setAttribute(
        "aria-label",
        `${button.textContent} axis of ${chart.entry.title}; press for ${WORDS[other(now)]}`,
      );
    }
  };
  show();
  return show;
}

const WORDS = /** @type {Record<string, string>} */ ({ log: "logarithmic", linear: "linear" });

/** @param {string} scale */
const other = (scale) => (scale === "log" ? "linear" : "log");
