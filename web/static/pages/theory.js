// The theory page: draws the figures that the page contains, and requests new figures when the sliders move.

import { describe, get } from "../lib/api.js";
import { Chart } from "../chart/chart.js";
import { find, findAll, given } from "../lib/dom.js";
import { addressed, exportable } from "../lib/exports.js";
import { recolored } from "../chart/recolor.js";

/**
 * @typedef {object} Theory
 * @property {string} time
 * @property {number | null} run
 * @property {string | null} label
 * @property {string | null} map
 * @property {number | null} step
 * @property {Record<string, Figure>} figures
 */

const WAIT_MS = 80; // minimum time between two requests while a slider moves, in ms
const form = find("[data-theory]", HTMLFormElement);
const refused = find("[data-refused]", HTMLElement);
const shown = find("[data-shown]", HTMLElement);
/** @type {{figures: Record<string, ChartEntry>}} */
const { figures } = await get("/api/figures");
/** @type {Record<string, Figure>} */
let bound = Object.fromEntries(
  findAll("[data-figure-of]", HTMLScriptElement).map((script) => [given(script, "figureOf"), JSON.parse(script.text)]),
);
/** @type {Set<string>} */
const hidden = new Set(); // maps that the user has hidden
const charts = findAll("[data-chart]", HTMLElement).map((element) => {
  const name = given(element, "chart");
  const traces = () => bound[name].data.filter((trace) => !hidden.has(trace.name ?? "")).map(recolored);
  return new Chart(element, figures[name], () => ({ ...bound[name], data: traces() }));
});
charts.forEach((chart) => chart.refresh());
const toggles = findAll("[data-toggle]", HTMLButtonElement);
const maps = () =>
  toggles
    .map((button) => given(button, "toggle"))
    .filter((map) => !hidden.has(map))
    .join(",");
exportable(() => ({
  view: { ...addressed("time", "a", "b", "run", "layer", "step"), maps: hidden.size ? maps() || "none" : null },
}));
for (const button of toggles) {
  button.addEventListener("click", () => {
    const map = given(button, "toggle");
    if (!hidden.delete(map)) hidden.add(map);
    button.setAttribute("aria-pressed", String(!hidden.has(map)));
    charts.forEach((chart) => chart.refresh());
  });
}

/** @type {AbortController | null} */
let asking = null;
/** @type {number | undefined} */
let timer;

/** @param {string} name */
const field = (name) => /** @type {HTMLInputElement | HTMLSelectElement} */ (form.elements.namedItem(name));

for (const slider of findAll("[data-exponent]", HTMLInputElement, form)) {
  const number = field(given(slider, "exponent"));
  const follow = () => (slider.value = String(Math.log10(Number(number.value)) || 0));
  follow();
  number.addEventListener("input", follow);
  slider.addEventListener("input", () => {
    number.value = String(Number((10 ** Number(slider.value)).toPrecision(3)));
  });
}
form.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(show, WAIT_MS);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  show();
});

async function show() {
  asking?.abort();
  asking = new AbortController();
  const asked = [...new FormData(form)].filter(([, value]) => value !== "").map(([key, value]) => [key, String(value)]);
  const query = String(new URLSearchParams(asked));
  try {
    /** @type {Theory} */
    const answer = await get(`/api/theory?${query}`, { signal: asking.signal });
    bound = answer.figures;
    refused.hidden = true;
    sayRun(answer);
    charts.forEach((chart) => chart.refresh());
    history.replaceState(null, "", `/theory?${query}`);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") return;
    refused.textContent = describe(error);
    refused.hidden = false;
  }
}

/** @param {Theory} answer */
function sayRun({ run, label, map, step, time }) {
  shown.hidden = run === null;
  if (run === null) return;
  const link = document.createElement("a");
  link.href = `/runs/${run}`;
  link.textContent = label;
  shown.replaceChildren("Circles: the weights of ", link, ` (${map}, ${time} time) at step ${step}.`);
}
