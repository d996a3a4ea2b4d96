// The common legend of a layer's charts: which eigenvalue each line shows, and why it is drawn.

import { DASH } from "../chart/tail.js";
import { colors } from "../lib/theme.js";

const SVG = "http://www.w3.org/2000/svg";

/** @param {EigenvalueItem[]} items */
export function showLines(items) {
  const list = document.querySelector("[data-lines]");
  list?.replaceChildren(
    ...items.map((item) => {
      const entry = document.createElement("li");
      const why = Object.assign(document.createElement("span"), { textContent: item.note ?? "" });
      entry.append(sample(item), `λ ${item.key}`, why);
      entry.classList.toggle("reason", Boolean(item.note));
      return entry;
    }),
  );
}

/** @param {EigenvalueItem} item */
function sample({ color, dash }) {
  const svg = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "line");
  const look = { x1: "0", x2: "24", y1: "4", y2: "4", stroke: colors()[color] ?? "currentColor", "stroke-width": "2" };
  for (const [name, value] of Object.entries({ ...look, "stroke-dasharray": DASH[dash]?.join(" ") ?? "" }))
    line.setAttribute(name, value);
  for (const [name, value] of Object.entries({ width: "24", height: "8", "aria-hidden": "true" }))
    svg.setAttribute(name, value);
  svg.append(line);
  return svg;
}
