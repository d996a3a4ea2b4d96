// The comparison page: the table of runs is the legend of its charts; the address gives the same view again.

import { get, messageOf } from "./api.js";
import { bind } from "./bind.js";
import { Chart } from "./chart.js";
import { Crowd } from "./chart_crowd.js";
import { bandColor, bandTraces, drawGroupKeys, lineTraces, lostTrace } from "./compare_figure.js";
import { addressOf, bandOf, firstLost, lineOf, tickedOf } from "./compare_model.js";
import { drawKeys, readRuns } from "./compare_runs.js";
import { find, findAll, given } from "./dom.js";
import { number } from "./format.js";
import { colors } from "./theme.js";
import { toast } from "./toast.js";
import { buckets } from "./typed.js";

const root = find("[data-curves-url]", HTMLElement);
const note = find("[data-part=note]", HTMLElement, root);
const usual = given(root, "usual");
const runs = readRuns(root);
const keys = runs.map((run) => run.key);
const view = { show: given(root, "show"), x: given(root, "x"), y: given(root, "y"), ticked: new Set(keys) };
const wanted = [get(given(root, "figuresUrl")), get(given(root, "lossUrl"))]; // before Plotly is there
/** @type {{crowd: Crowd, chart: Chart}[]} */
const charts = [];
const AXES = { step: "step", tokens: "tokens", seconds: "training time (s, at each run's mean speed)" };

/**
 * @param {string} name
 * @param {ChartEntry} entry
 * @param {CompareAnswer["curves"]} curves
 * @param {string} series
 */
function addChart(name, entry, curves, series) {
  const element = find(`[data-chart=${name}]`, HTMLElement);
  /** @type {Map<string, Buckets>} */
  const data = new Map(runs.flatMap((run) => (curves?.[run.key]?.[series] ? [[run.key, read(curves[run.key][series], series)]] : [])));
  const crowd = new Crowd(element);
  const chart = new Chart(element, entry, () => {
    const palette = colors();
    const there = runs.filter((run) => data.has(run.key));
    const drawn = view.show === "groups" ? there.filter((run) => view.ticked.has(run.key)) : there;
    const lines = drawn.flatMap((run) => lineOf(run, seriesOf(run.key), view.x, view.y === "log", drawn.length) ?? []);
    const made = lineTraces(lines, runs, palette);
    crowd.lines = made;
    const groups = view.show === "groups" ? [...new Set(there.map((run) => run.group))] : [];
    const bands = groups.map((group) => {
      const members = there.filter((run) => run.group === group);
      return { group, of: members, band: bandOf(members.map((run) => ({ run, series: seriesOf(run.key) })), view.x) };
    });
    drawGroupKeys(find("[data-part=groups]", HTMLElement, root), groups.map((group, i) => bandColor(group, there, i, palette)));
    const lost = drawn.flatMap((run) => firstLost(run, seriesOf(run.key), view.x) ?? []);
    const { layout } = structuredClone(entry.figure);
    Object.assign(layout, { showlegend: false, hovermode: false });
    Object.assign(layout.xaxis ?? {}, { title: { text: AXES[/** @type {keyof AXES} */ (view.x)] } });
    Object.assign(layout.yaxis ?? {}, { type: view.y });
    layout.uirevision = `${view.x} ${view.y}`;
    const traces = [...bands.flatMap((one, i) => bandTraces(one, i, palette)), ...made.map((line) => line.trace)];
    return { data: /** @type {any[]} */ ([...traces, lostTrace(lost, palette)]), layout };
  });
  /** @param {string} key */
  const seriesOf = (key) => /** @type {Buckets} */ (data.get(key));
  crowd.onHover = light;
  charts.push({ crowd, chart });
  return chart;
}

/**
 * The ratios' `min` goes over eigenvalues as well; what is drawn of them is the largest.
 * @param {SeriesAnswer} answer
 * @param {string} series
 */
function read(answer, series) {
  const found = buckets(answer);
  return series === "train/loss" ? found : { ...found, min: found.max };
}

function refresh() {
  for (const { chart, crowd } of charts) chart.refresh(() => whenDrawn(chart, crowd));
}

/** @param {Chart} chart @param {Crowd} crowd */
function whenDrawn(chart, crowd) {
  crowd.shown = view.ticked;
  crowd.drawn();
  requestAnimationFrame(() => requestAnimationFrame(() => (chart.element.dataset.drawnAt = String(performance.now()))));
}

/** @param {string | null} key */
function light(key) {
  for (const { crowd } of charts) crowd.light(key !== null && (view.show === "groups" ? view.ticked.has(key) : true) ? key : null);
  for (const element of findAll("tr[data-run], polyline[data-run]", Element, root)) {
    element.classList.toggle("lit", element.getAttribute("data-run") === key);
  }
  root.querySelector("svg.parallel")?.classList.toggle("dimmed", key !== null);
}

/** @param {boolean} [redraw] */
function changed(redraw = view.show === "groups") {
  history.replaceState(null, "", addressOf(location.search, view, keys, usual));
  for (const box of findAll("[data-line]", HTMLInputElement, root)) box.checked = view.ticked.has(given(box, "line"));
  const of = `${view.ticked.size} of ${keys.length} lines are shown`;
  note.textContent = view.show === "groups"
    ? `Bands: median and quartiles of each group; a lost run counts as worse than any other. ${view.ticked.size ? of : "Tick a run for its line"}.`
    : `${of}.`;
  if (redraw) refresh();
  else for (const { crowd } of charts) crowd.show(view.ticked);
}

for (const select of findAll("[data-view]", HTMLSelectElement, root)) {
  const name = /** @type {"show" | "x" | "y"} */ (given(select, "view"));
  select.value = view[name];
  select.addEventListener("change", () => {
    view[name] = select.value;
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
try {
  const [{ figures }, { curves }] = await Promise.all(wanted);
  addChart("compare_loss", figures.compare_loss, curves, "train/loss");
  refresh();
  /** @type {CompareAnswer} */
  const ratio = await get(given(root, "ratioUrl"));
  const largest = addChart("compare_max_ratio", figures.compare_max_ratio, ratio.curves, "max_grad_over_weight");
  largest.refresh(() => whenDrawn(largest, charts[1].crowd));
  drawRanges(figures.compare_ranges, ratio.pooled);
} catch (error) {
  toast(`The curves could not be read: ${messageOf(error)}`, "critical");
}

/**
 * @param {ChartEntry} entry
 * @param {PooledRange[]} pooled
 */
function drawRanges(entry, pooled) {
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
