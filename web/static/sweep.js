// The sweep page: the server renders its grid and its runs; this takes them again while runs go on, and draws the chart.

import { describe, get, messageOf, send } from "./api.js";
import { bind } from "./bind.js";
import { Chart } from "./chart.js";
import { find, findAll, freshPage, given, replacePart } from "./dom.js";
import { exportable } from "./exports.js";
import { lossLines } from "./grid.js";
import { colors } from "./theme.js";
import { refreshTimes } from "./times.js";
import { toast } from "./toast.js";

const POLL_MS = 3000;
const root = find("[data-sweep-url]", HTMLElement);
const figure = find("[data-final-loss]", HTMLElement);

// before anything is waited for: until then the button rests, for a browser would send the form itself
const rename = find("form[data-rename]", HTMLFormElement);
rename.addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = find("[name=name]", HTMLInputElement, rename).value.trim();
  try {
    await send("PATCH", given(rename, "rename"), { name: name || null });
    location.reload();
  } catch (error) {
    toast(describe(error), "critical");
  }
});
find("button", HTMLButtonElement, rename).disabled = false;

/** @type {[{figures: Record<string, ChartEntry>}, SweepGridAnswer]} */
const [{ figures }, first] = await Promise.all([get(given(root, "figuresUrl")), get(given(root, "gridUrl"))]);
const entry = figures.sweep_final_loss;
let grid = first;

const chart = new Chart(find("[data-chart=sweep_final_loss]", HTMLElement), entry, () => {
  const { data, items, spreads, lost, title, log } = lossLines(grid, (color) => color in colors());
  const bound = bind(entry.figure, data, { items, colors: colors() });
  Object.assign(bound.layout.xaxis ?? {}, { title: { text: title }, type: log ? "log" : "linear" });
  for (const field of ["last", "nonfinite"]) {
    bound.data.filter((trace) => trace.meta.field === field).forEach((trace, i) => {
      if (field === "nonfinite") trace.text = lost[items[i].key];
      else trace.error_y = { type: "data", symmetric: false, thickness: 1, width: 4, ...spreads[items[i].key] };
    });
  }
  return bound;
});

function draw() {
  const drawable = grid.columns.values.some((value) => typeof value === "number") && grid.finite + grid.lost > 0;
  figure.hidden = !drawable;
  if (drawable) chart.refresh();
}

async function poll() {
  if (document.hidden || !document.querySelector("[data-part=statuses][data-open]")) return;
  const [page, fresh] = await Promise.all([freshPage(), get(given(root, "gridUrl"))]);
  if (!page) return;
  for (const part of ["statuses", "grid", "runs"]) replacePart(page, `[data-part=${part}]`);
  if (!page.querySelector("[data-waiting]")) document.querySelector("[data-waiting]")?.remove();
  if (!page.querySelector("[data-part=statuses][data-open]")) find("[data-action]", HTMLElement).hidden = true;
  refreshTimes();
  grid = fresh;
  draw();
}

for (const link of findAll("a[data-copy]", HTMLAnchorElement)) {
  link.addEventListener("click", async (event) => {
    if (!navigator.clipboard) return; // then it is a download
    event.preventDefault();
    try {
      const answer = await fetch(link.href);
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      await navigator.clipboard.writeText(await answer.text());
      toast(`The grid is copied as ${link.dataset.copy}.`);
    } catch (error) {
      toast(`The grid could not be copied: ${messageOf(error)}`, "critical");
    }
  });
}

draw();
exportable(() => ({ data: findAll("a[data-copy=CSV]", HTMLAnchorElement).map(({ href }) => ({ name: "grid", href })) }));
setInterval(() => poll().catch((error) => console.warn("the sweep could not be refreshed:", messageOf(error))), POLL_MS);
