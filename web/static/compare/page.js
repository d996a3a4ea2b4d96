// The comparison page. The table of runs is the legend of the charts; the page's URL contains the view.

import { get, messageOf } from "../lib/api.js";
import { compareChart } from "./charts.js";
import { addressOf, rangeOf, tickedOf } from "./model.js";
import { drawRanges } from "./ranges.js";
import { drawKeys, readRuns } from "./runs.js";
import { describeSmoothing } from "./smoothing.js";
import { find, findAll, given } from "../lib/dom.js";
import { addressed, exportable } from "../lib/exports.js";
import { toast } from "../lib/toast.js";

const root = find("[data-curves-url]", HTMLElement);
const note = find("[data-part=note]", HTMLElement, root);
const usual = given(root, "usual");
const runs = readRuns(root);
const keys = runs.map((run) => run.key);
const view = {
  show: given(root, "show"),
  x: given(root, "x"),
  y: given(root, "y"),
  ticked: new Set(keys),
  range: rangeOf(location.search),
  smooth: Number(given(root, "smooth")),
  metric: given(root, "metric"),
  larger: false,
  resets: 0,
};
const LOSS = "train/loss";
/** @param {string} metric "" for the loss */
const curvesOf = (metric) => get(`${given(root, "curvesUrl")}&series=${metric ? encodeURIComponent(metric) : LOSS}`);
const wanted = [get(given(root, "figuresUrl")), curvesOf(view.metric)]; // requested before Plotly is loaded
/** @import { Chart } from "../chart/chart.js" */
/** @import { CompareChart } from "./charts.js" */

/** @type {CompareChart[]} */
const charts = [];

/** @param {CompareChart} one */
function add(one) {
  one.crowd.onHover = light;
  one.chart.onZoom = (from, to) => zoom(from === null || to === null ? null : [from, to], one.chart);
  charts.push(one);
  return new Promise((drawn) => {
    one.chart.refresh(() => drawn(whenDrawn(one)));
  });
}

function refresh() {
  for (const one of charts) one.chart.refresh(() => whenDrawn(one));
}

/**
 * Shows this range of the axis in all charts and writes the range into the address.
 * @param {[number, number] | null} range
 * @param {Chart} by the chart that already shows the range
 */
function zoom(range, by) {
  view.range = range;
  if (!range) view.resets += 1;
  light(null); // removes the highlight, because the highlighted line was drawn for the old range
  for (const { chart } of charts) if (range && chart !== by) chart.show(range);
  changed(!range);
}

/** @param {CompareChart} one */
function whenDrawn({ chart, crowd }) {
  crowd.shown = view.ticked;
  crowd.drawn();
  requestAnimationFrame(() => requestAnimationFrame(() => (chart.element.dataset.drawnAt = String(performance.now()))));
}

/** @param {string | null} key */
function light(key) {
  for (const { crowd } of charts)
    crowd.light(key !== null && (view.show === "groups" ? view.ticked.has(key) : true) ? key : null);
  for (const element of findAll("tr[data-run], polyline[data-run]", Element, root)) {
    element.classList.toggle("lit", element.getAttribute("data-run") === key);
  }
  root.querySelector("svg.parallel")?.classList.toggle("dimmed", key !== null);
}

/** @param {boolean} [redraw] */
function changed(redraw = view.show === "groups") {
  const address = addressOf(location.search, view, keys, usual);
  if (address !== location.search) history.replaceState(null, "", address);
  for (const box of findAll("[data-line]", HTMLInputElement, root)) box.checked = view.ticked.has(given(box, "line"));
  const of = `${view.ticked.size} of ${keys.length} lines are shown`;
  const better = view.larger ? "a larger value" : "a smaller value";
  note.textContent =
    view.show === "groups"
      ? `Bands: median and quartiles of each group; a lost run counts as the worst (${better} is better). ${view.ticked.size ? of : "Tick a run to show its line"}.`
      : `${of}.`;
  note.textContent += describeSmoothing(view.smooth);
  if (redraw) refresh();
  else for (const { crowd } of charts) crowd.show(view.ticked);
}

const metric = find("[data-metric]", HTMLSelectElement, root);
metric.value = view.metric || LOSS;
const larger = () => metric.selectedOptions[0]?.hasAttribute("data-larger") ?? false;
view.larger = larger();
metric.addEventListener("change", async () => {
  const chosen = metric.value === LOSS ? "" : metric.value;
  try {
    const { curves } = await curvesOf(chosen);
    [view.metric, view.larger] = [chosen, larger()];
    charts[0]?.replace(metric.value, curves);
    find("figcaption :is(h2, h3)", HTMLElement, charts[0]?.chart.element.closest("figure") ?? root).textContent =
      chosen || "Loss";
    changed(true);
  } catch (error) {
    toast(`The metric could not be read: ${messageOf(error)}`, "critical");
    metric.value = view.metric || LOSS;
  }
});
const smoothing = find("[data-smooth]", HTMLSelectElement, root);
smoothing.value = String(view.smooth);
smoothing.addEventListener("change", () => {
  view.smooth = Number(smoothing.value);
  changed(true);
});
for (const select of findAll("[data-view]", HTMLSelectElement, root)) {
  const name = /** @type {"show" | "x" | "y"} */ (given(select, "view"));
  select.value = view[name];
  select.addEventListener("change", () => {
    view[name] = select.value;
    if (name === "x") view.range = null; // the range was in units of the old axis
    if (name === "show") view.ticked = new Set(view.show === "groups" ? [] : keys);
    changed(true);
  });
}
for (const button of findAll("[data-tick]", HTMLButtonElement, root)) {
  button.addEventListener("click", () => {
    const many = { all: keys.length, none: 0 }[given(button, "tick")] ?? Number(given(button, "tick"));
    view.ticked = new Set(keys.slice(0, many));
    changed();
  });
}
root.addEventListener("change", ({ target }) => {
  if (!(target instanceof HTMLInputElement) || !target.dataset.line) return;
  view.ticked = new Set(view.ticked);
  if (target.checked) view.ticked.add(target.dataset.line);
  else view.ticked.delete(target.dataset.line);
  changed();
});
for (const kind of /** @type {const} */ (["pointerover", "focusin"])) {
  root.addEventListener(kind, ({ target }) => {
    const row = target instanceof Element ? target.closest("tr[data-run], polyline[data-run]") : null;
    if (row) light(row.getAttribute("data-run"));
    else if (target instanceof Element && !target.closest(".crowd")) light(null);
  });
}

view.ticked = tickedOf(location.search, view.show, keys);
drawKeys(root, runs);
changed(false);
exportable(() => ({ view: addressed("metric", "smooth", "show", "x", "y", "on", "off", "from", "to") }));
try {
  const [{ figures }, { curves }] = await Promise.all(wanted);
  const groups = find("[data-part=groups]", HTMLElement, root);
  await add(
    compareChart(view.metric || LOSS, {
      element: find("[data-chart=compare_loss]", HTMLElement),
      entry: figures.compare_loss,
      curves,
      runs,
      view,
      groups,
    }),
  );
  /** @type {CompareAnswer} */
  const ratio = await get(given(root, "ratioUrl"));
  const element = find("[data-chart=compare_max_ratio]", HTMLElement);
  void add(
    compareChart("max_grad_over_weight", {
      element,
      entry: figures.compare_max_ratio,
      curves: ratio.curves,
      runs,
      view,
      groups: null,
    }),
  );
  drawRanges(figures.compare_ranges, ratio.pooled);
} catch (error) {
  toast(`The curves could not be read: ${messageOf(error)}`, "critical");
}
