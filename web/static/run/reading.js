// Shows the values at the cursor beside the charts, never over the chart that is read: one line in the caption of each
// chart, and all values of the chart under the pointer in a panel next to it.

/** @import { Reading } from "./readout.js" */

import { number } from "../lib/format.js";
import { colors } from "../lib/theme.js";
import { beside } from "./readout.js";

/** @type {HTMLElement | null} */
let panel = null;

/** @typedef {{step: number | null, readings: Reading[], hovered: string[]}} Shown `hovered`: what Plotly says about the point under the pointer */

/**
 * Shows values in the caption of a chart, in place of its meaning; null shows the meaning.
 * @param {HTMLElement} figure
 * @param {Shown | null} shown
 */
export function showInCaption(figure, shown) {
  const caption = figure.querySelector("figcaption");
  caption?.classList.toggle("reading", shown !== null);
  if (!caption || !shown) return;
  let line = caption.querySelector(".readout");
  if (!line) {
    line = Object.assign(document.createElement("span"), { className: "readout small grow" });
    line.setAttribute("aria-hidden", "true");
    caption.querySelector(".nothing")?.before(line);
  }
  line.replaceChildren(...parts(shown).flatMap((part, i) => (i ? [" · ", part] : [part])));
}

/**
 * Shows all values of this chart beside it, if its caption is too short for them and there is room; null hides the panel.
 * @param {HTMLElement | null} figure
 * @param {Shown} [shown]
 */
export function showBeside(figure, shown) {
  panel ??= makePanel();
  const line = figure?.querySelector(".readout");
  panel.hidden = !figure || !shown || !line || line.scrollWidth <= line.clientWidth;
  if (panel.hidden || !figure || !shown) return;
  panel.replaceChildren(...parts(shown));
  if (panel.parentElement !== figure) figure.append(panel); // inside the figure, so that a full screen shows it
  const place = beside(figure.getBoundingClientRect(), panel.getBoundingClientRect(), innerWidth, innerHeight);
  panel.hidden = !place;
  if (place) panel.style.transform = `translate(${Math.round(place[0])}px, ${Math.round(place[1])}px)`;
}

function makePanel() {
  const made = Object.assign(document.createElement("div"), { className: "reading-panel" });
  made.setAttribute("aria-hidden", "true"); // hidden, because the chart's description contains the same values
  return made;
}

/** @param {Shown} shown */
function parts({ step, readings, hovered }) {
  const palette = colors();
  const values = readings.map(({ name, text, color }) => {
    const part = document.createElement("span");
    part.append(Object.assign(document.createElement("b"), { textContent: name }), ` ${text}`);
    part.style.color = palette[color] ?? palette.ink;
    return part;
  });
  const said = [...(step === null ? [] : [`step ${number(step)}`]), ...hovered];
  return [...said.map((text) => Object.assign(document.createElement("span"), { textContent: text })), ...values];
}
