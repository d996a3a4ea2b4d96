// Forms that silence messages about a run, a project or a kind of event for some hours.

import { describe, send } from "./api.js";
import { findAll, given } from "./dom.js";
import { toast } from "./toast.js";

/** @param {FormData} form */
function silenceOf(form) {
  /** @param {string} name */
  const text = (name) => String(form.get(name) ?? "").trim() || null;
  const run = text("run_id");
  return {
    run_id: run && Number(run),
    project: text("project"),
    kind: text("kind"),
    until: Date.now() / 1000 + 3600 * Number(text("hours")),
  };
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!(form instanceof HTMLFormElement) || form.dataset.silence === undefined) return;
  event.preventDefault();
  const buttons = findAll("button", HTMLButtonElement, form);
  for (const button of buttons) button.disabled = true;
  try {
    await send("POST", given(form, "silence"), silenceOf(new FormData(form)));
    location.reload();
  } catch (error) {
    toast(describe(error), "critical");
    for (const button of buttons) button.disabled = false;
  }
});
