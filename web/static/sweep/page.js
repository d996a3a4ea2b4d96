// The sweep page. The server renders its grid and its runs and binds its chart; this script updates them while runs train.

import { describe, get, messageOf, send } from "../lib/api.js";
import { Chart } from "../chart/chart.js";
import { find, findAll, freshPage, given, replacePart } from "../lib/dom.js";
import { exportable, figureUrl } from "../lib/exports.js";
import { recolored } from "../chart/recolor.js";
import { refreshTimes } from "../lib/times.js";
import { toast } from "../lib/toast.js";

const POLL_MS = 3000;
const SHARE = 9; // a page of thousands of runs, whose poll takes long, polls for at most a tenth of the time
const root = find("[data-sweep-url]", HTMLElement);
const figure = find("[data-final-loss]", HTMLElement);

// this handler is set before the first await; until then the button is disabled, because the browser would submit the
// form itself
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

const { figures } = await get(given(root, "figuresUrl"));
const exported = find("a[data-export=sweep_final_loss]", HTMLAnchorElement);
/** @type {Figure | null} the figure that the server has bound */
let bound = null;
const chart = new Chart(find("[data-chart=sweep_final_loss]", HTMLElement), figures.sweep_final_loss, () =>
  bound ? { ...bound, data: bound.data.map(recolored) } : null,
);

async function draw() {
  if (figure.hidden) return;
  bound = await get(figureUrl(exported.href, { format: "json" }));
  chart.refresh();
}

async function poll() {
  if (document.hidden || !document.querySelector("[data-part=statuses][data-open]")) return;
  const page = await freshPage();
  if (!page) return;
  for (const part of ["statuses", "search", "grid", "claims", "runs"]) replacePart(page, `[data-part=${part}]`);
  if (!page.querySelector("[data-waiting]")) document.querySelector("[data-waiting]")?.remove();
  if (!page.querySelector("[data-part=statuses][data-open]")) find("[data-action]", HTMLElement).hidden = true;
  figure.hidden = find("[data-final-loss]", HTMLElement, page).hidden;
  refreshTimes();
  await draw();
}

for (const anchor of findAll("a[data-copy]", HTMLAnchorElement)) {
  anchor.addEventListener("click", async (event) => {
    if (!navigator.clipboard) return; // without a clipboard the link downloads the file
    event.preventDefault();
    try {
      const answer = await fetch(anchor.href);
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      await navigator.clipboard.writeText(await answer.text());
      toast(`The grid was copied as ${anchor.dataset.copy}.`);
    } catch (error) {
      toast(`The grid could not be copied: ${messageOf(error)}`, "critical");
    }
  });
}

exportable(() => ({
  data: findAll("a[data-copy=CSV]", HTMLAnchorElement).map(({ href }) => ({ name: "grid", href })),
}));
function pollLater(pause = POLL_MS) {
  setTimeout(async () => {
    const started = performance.now();
    await poll().catch((error) => console.warn("the sweep could not be refreshed:", messageOf(error)));
    pollLater(Math.max(POLL_MS, SHARE * (performance.now() - started)));
  }, pause);
}
pollLater();
await draw();
