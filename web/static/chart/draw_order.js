// Decides when each chart of the page is drawn: visible charts first, one chart per frame, all tails of new points in
// one frame.

/** @import { Chart } from "./chart.js" */

const INTERVAL_MS = 500;
const TAIL_MS = 400;
/** @type {Map<Element, Chart>} */
export const charts = new Map();
/** @type {ReturnType<typeof setTimeout> | null} */
let timer = null;
/** @type {ReturnType<typeof setTimeout> | null} */
let tails = null;
let restUntil = 0;
// some pages run their script before Plotly is loaded, so that the page's data is requested first
document.querySelector("script[data-plotly]")?.addEventListener("load", schedule);

const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const chart = charts.get(target);
      if (!chart) continue;
      chart.visible = isIntersecting;
      if (isIntersecting && chart.growing) chart.waiting = true;
    }
    schedule();
  },
  { rootMargin: "0px" },
);
document.addEventListener("visibilitychange", () => {
  schedule();
  scheduleTails();
});

/** @param {Chart} chart */
export function watch(chart) {
  charts.set(chart.element, chart);
  seen.observe(chart.element);
}

// Visible charts come first, then charts that were never drawn with points, so that they are ready when the user scrolls
// to them. A chart in a closed part of the page has no size, so it is drawn when the user opens this part.
export function schedule() {
  if (timer !== null || document.hidden || !("Plotly" in window)) return;
  const waiting = [...charts.values()].filter(
    (chart) =>
      chart.waiting && (chart.visible || ((chart.empty || !chart.drawings) && chart.element.checkVisibility())),
  );
  if (!waiting.length) return;
  const next = waiting.reduce((a, b) => (isBefore(a, b) ? a : b));
  // at most half of the time is spent on invisible charts, so that the page stays usable on a slow machine
  const due = Math.max(next.lastDraw + INTERVAL_MS, next.visible ? 0 : restUntil);
  timer = setTimeout(() => requestAnimationFrame(() => drawOne(next)), Math.max(0, due - performance.now()));
}

/** @param {Chart} a @param {Chart} b */
function isBefore(a, b) {
  return a.visible === b.visible ? a.lastDraw <= b.lastDraw : a.visible;
}

/** @param {Chart} chart */
function drawOne(chart) {
  timer = null;
  const start = performance.now();
  chart.lastDraw = start;
  if (chart.waiting) chart.draw();
  restUntil = 2 * performance.now() - start;
  schedule();
}

// Draws all tails in one frame.
export function scheduleTails() {
  if (tails !== null || document.hidden || ![...charts.values()].some((chart) => chart.growing && chart.visible))
    return;
  tails = setTimeout(() => requestAnimationFrame(drawTails), TAIL_MS);
}

function drawTails() {
  tails = null;
  for (const chart of charts.values()) if (chart.growing && chart.visible && !chart.waiting) chart.drawTail();
  scheduleTails();
}
