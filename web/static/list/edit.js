// Edits a run's name, tags and notes in its row. Enter saves, Escape discards the changes.

import { describe, send } from "../lib/api.js";
import { find } from "../lib/dom.js";
import { show } from "./page.js";
import { toast } from "../lib/toast.js";

/** @param {string} text */
const tagsOf = (text) =>
  text
    .split(",")
    .map((tag) => tag.trim())
    .filter(Boolean);

/**
 * @param {string} label
 * @param {HTMLInputElement | HTMLTextAreaElement} field
 * @param {string} name
 * @param {string} value
 */
function labelled(label, field, name, value) {
  const around = document.createElement("label");
  around.className = "field";
  field.name = name;
  field.value = value;
  around.append(label, field);
  return around;
}

/** @param {HTMLElement} button */
function open(button) {
  const { name = "", tags = "", notes = "" } = button.dataset;
  const cell = button.closest("td");
  const run = button.closest("tr")?.dataset.run;
  if (!cell || !run || cell.querySelector("form")) return;
  const before = [...cell.childNodes];
  const form = document.createElement("form");
  form.className = "edit";
  const title = labelled("Name", document.createElement("input"), "name", name);
  const area = document.createElement("textarea");
  area.rows = 2;
  const save = document.createElement("button");
  save.textContent = "Save";
  save.className = "primary";
  const leave = document.createElement("button");
  leave.textContent = "Cancel";
  leave.type = "button";
  const row = document.createElement("span");
  row.className = "row";
  row.append(save, leave);
  form.append(
    title,
    labelled("Tags, separated by commas", document.createElement("input"), "tags", tags),
    labelled("Notes", area, "notes", notes),
    row,
  );
  cell.replaceChildren(form);
  const first = find("input", HTMLInputElement, form);
  first.focus();
  first.select();

  const close = () => {
    cell.replaceChildren(...before);
    find("[data-edit]", HTMLElement, cell).focus();
  };
  leave.addEventListener("click", close);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    const whole =
      event.key === "Enter" && !event.isComposing && !event.shiftKey && event.target instanceof HTMLTextAreaElement;
    if (!whole) return;
    event.preventDefault(); // Shift+Enter starts a new line in the notes
    form.requestSubmit();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const data = new FormData(form);
    const changes = {
      name: String(data.get("name")).trim() || null,
      tags: tagsOf(String(data.get("tags"))),
      notes: String(data.get("notes")),
    };
    save.disabled = true;
    try {
      await send("PATCH", `/api/runs/${run}`, changes);
      close();
      await show(location.href, "stay");
      const again = document.querySelector(`tr[data-run="${run}"] [data-edit]`);
      if (again instanceof HTMLElement) again.focus();
    } catch (error) {
      toast(describe(error), "critical"); // the form remains open with the typed text
      save.disabled = false;
    }
  });
}

document.addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("button[data-edit]") : null;
  if (button instanceof HTMLElement) open(button);
});
document.addEventListener("keydown", (event) => {
  if (!["e", "F2"].includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (!(event.target instanceof HTMLElement) || event.target.closest("input:not([type=checkbox]), textarea, select"))
    return;
  const button = event.target.closest("tr[data-run]")?.querySelector("[data-edit]");
  if (!(button instanceof HTMLElement)) return;
  event.preventDefault();
  open(button);
});
