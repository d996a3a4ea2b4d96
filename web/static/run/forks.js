// Tests a cause on the run page: a button forks the run with one setting changed, and a row shows the fork's progress.

import { describe, send } from "../lib/api.js";
import { findAll, freshPage, given, replacePart } from "../lib/dom.js";
import { keepFolds } from "./folds.js";
import { toast } from "../lib/toast.js";

const LOOK_MS = 2000;
const PARTS = ["forks", "verdict", "why"]; // these parts of the page show the outcome of a fork

let looking = false;

document.addEventListener("click", async (event) => {
  const button = event.target instanceof Element ? event.target.closest("button[data-changes]") : null;
  const section = button?.closest("[data-forks]");
  if (!(button instanceof HTMLButtonElement && section instanceof HTMLElement)) return;
  /** @type {Record<string, unknown>} */
  const changes = JSON.parse(given(button, "changes"));
  const map = section.querySelector("[data-map-choice]");
  if ("withMap" in button.dataset && map instanceof HTMLSelectElement)
    changes["model.reparameterization.name"] = map.value;
  button.disabled = true;
  try {
    const from = section.querySelector("[data-from-step]");
    const step = from instanceof HTMLSelectElement ? { from_step: Number(from.value) } : {};
    const fork = await send("POST", given(section, "forks"), { ...step, changes });
    toast(
      `Run ${fork.id} starts ${fork.forked_at_step ? `after step ${fork.forked_at_step}` : "from the initial weights"}.`,
    );
    await refresh();
    follow();
  } catch (error) {
    toast(describe(error), "critical");
  }
  button.disabled = false;
});

async function refresh() {
  const page = await freshPage();
  if (!page) return;
  const chosen = choices().map((select) => select.value);
  for (const part of PARTS) {
    const [old, fresh] = [document, page].map((one) => one.querySelector(`[data-part="${part}"]`));
    if (old && fresh) keepFolds(old, fresh);
    replacePart(page, `[data-part="${part}"]`);
  }
  choices().forEach((select, i) => (select.value = chosen[i] ?? select.value));
}

const choices = () => findAll("[data-forks] select", HTMLSelectElement);

// Polls until every fork has ended; a hidden page does not poll.
function follow() {
  if (looking || !document.querySelector("[data-fork][data-open]")) return;
  looking = true;
  setTimeout(async () => {
    looking = false;
    // replacing the part would close an open selection box
    const busy = document.hidden || document.activeElement?.matches("[data-forks] select");
    if (!busy) await refresh().catch(() => undefined);
    follow();
  }, LOOK_MS);
}

follow();
