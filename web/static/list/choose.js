// Chooses runs by their check boxes (a range with Shift), and applies an action to all chosen runs in one request.

import { describe, send } from "../lib/api.js";
import { find, findAll } from "../lib/dom.js";
import { LOADED, show } from "./page.js";
import { toast } from "../lib/toast.js";

/** @typedef {{done: number[], made: Record<string, number>, refused: {run: number, message: string}[]}} Answer */

const bar = find("[data-compare-bar]", HTMLElement);
const looking = find("[data-looking-for]", HTMLElement);
const chosen = new Set(bar.dataset.chosen ? [bar.dataset.chosen] : []); // the chosen runs, including runs on other pages of the list
/** @type {HTMLInputElement | null} */
let anchor = null; // the last box that was clicked without Shift

const boxes = () =>
  findAll("tr[data-run] input[type=checkbox]", HTMLInputElement, find("[data-part=list]", HTMLElement));
const QUESTIONS = /** @type {Record<string, (n: string) => string>} */ ({
  cancel: (n) => `Cancel ${n}? Everything recorded is kept.`,
  clone: (n) => `Submit ${n} again with the same settings?`,
});
const SAID = /** @type {Record<string, string>} */ ({
  cancel: "cancelled or being cancelled",
  clone: "submitted again",
  hide: "hidden",
  show: "shown again",
  delete: "moved to the trash",
  restore: "restored",
});

/** @param {number} n */
const runs = (n) => (n === 1 ? "1 run" : `${n} runs`);

function draw() {
  for (const box of boxes()) box.checked = chosen.has(box.value);
  const all = document.querySelector("input[data-all]");
  if (all instanceof HTMLInputElement) {
    const ticked = boxes().filter((box) => box.checked).length;
    all.checked = ticked > 0 && ticked === boxes().length;
    all.indeterminate = ticked > 0 && ticked < boxes().length;
  }
  bar.hidden = chosen.size === 0;
  find("[data-count]", HTMLElement, bar).textContent = `${chosen.size} chosen`;
  find("[data-do=compare]", HTMLButtonElement, bar).title = chosen.size === 1 ? "A comparison needs a second run" : "";
  looking.hidden = chosen.size !== 1 || !bar.dataset.chosen;
  looking.textContent = `Run ${[...chosen][0]} is chosen. Tick the runs to compare it with, then press Compare.`;
}

document.addEventListener("click", (event) => {
  const box = event.target;
  if (!(box instanceof HTMLInputElement) || box.type !== "checkbox") return;
  if (box.dataset.all !== undefined) {
    for (const one of boxes()) mark(one.value, box.checked);
    return draw();
  }
  if (!box.closest("tr[data-run]")) return;
  const all = boxes();
  const [from, to] = [anchor ? all.indexOf(anchor) : -1, all.indexOf(box)].sort((a, b) => a - b);
  const range = event.shiftKey && from >= 0 ? all.slice(from, to + 1) : [box];
  for (const one of range) mark(one.value, box.checked);
  if (!event.shiftKey) anchor = box;
  draw();
});

/** @param {string} run @param {boolean} on */
function mark(run, on) {
  if (on) chosen.add(run);
  else chosen.delete(run);
}

bar.addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("button[data-do]") : null;
  if (!(button instanceof HTMLButtonElement)) return;
  const action = button.dataset.do ?? "";
  if (action === "none") {
    chosen.clear();
    return draw();
  }
  if (action === "compare") {
    if (chosen.size < 2) return toast("A comparison needs a second run: tick the box of another run.");
    location.href = `/compare?runs=${[...chosen].join(",")}`;
    return;
  }
  if (QUESTIONS[action] && !confirm(QUESTIONS[action](runs(chosen.size)))) return;
  act(action, [...chosen].map(Number));
});

/**
 * @param {string} action
 * @param {number[]} which
 */
async function act(action, which) {
  try {
    /** @type {Answer} */
    const { done, refused } = await send("POST", `/api/bulk/${action}`, { runs: which });
    const undo = { delete: "restore", hide: "show", show: "hide" }[action];
    const button = undo ? { label: "Undo", act: () => act(undo, done) } : undefined;
    if (done.length) toast(`${runs(done.length)} ${SAID[action]}.`, "info", button);
    const few = refused
      .slice(0, 5)
      .map(({ run, message }) => (message.includes(String(run)) ? message : `run ${run}: ${message}`));
    if (refused.length)
      toast(`Not done for ${runs(refused.length)}: ${few.join("; ")}${refused.length > 5 ? "; …" : ""}`, "critical");
    for (const run of done) if (action !== "clone") chosen.delete(String(run)); // runs whose action was refused remain chosen
    await show(location.href, "stay");
    draw();
  } catch (error) {
    toast(describe(error), "critical");
  }
}

addEventListener(LOADED, draw);
draw();
