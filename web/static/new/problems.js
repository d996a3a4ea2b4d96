// Shows every problem of the form for a new run beside its field.

import { ApiError, messageOf, send } from "../lib/api.js";
import { find, findAll } from "../lib/dom.js";

/**
 * @typedef {{field: string | null, message: string, allowed: string | null}} Problem
 * @typedef {(path: string) => HTMLElement | undefined} FieldOf returns the field that currently sets a path
 */

/** @param {HTMLFormElement} form */
export function clearErrors(form) {
  for (const note of findAll("[data-error-for], [data-form-error]", HTMLElement, form)) note.hidden = true;
  for (const element of form.querySelectorAll("[aria-invalid]")) element.removeAttribute("aria-invalid");
}

/**
 * The server refuses a form with its first problem, and lists all problems on request.
 * @param {HTMLFormElement} form
 * @param {FieldOf} fieldOf
 * @param {unknown} error
 * @param {object} body the refused request
 */
export async function showErrors(form, fieldOf, error, body) {
  const { status = 0, field = "", allowed = "" } = error instanceof ApiError ? error : {};
  const all = status === 422 ? await send("POST", "/new/check", body).catch(() => null) : null;
  /** @type {Problem[]} */
  const problems = all?.problems.length ? all.problems : [{ field, message: messageOf(error), allowed }];
  const placed = problems.filter((problem) => showProblem(form, fieldOf, problem));
  const others = problems.filter((problem) => !placed.includes(problem)).map(textOf);
  if (placed.length)
    others.unshift(`${placed.map((one) => one.field).join(", ")} ${placed.length === 1 ? "was" : "were"} refused.`);
  const note = find("[data-form-error]", HTMLElement, form);
  note.textContent = others.join(" ");
  note.hidden = others.length === 0;
  const target = form.querySelector("[aria-invalid]");
  if (target instanceof HTMLElement) target.focus();
}

/** @param {Problem} problem */
function textOf({ field, message, allowed }) {
  const named = field && !message.includes(field) ? `${field}: ${message}` : message;
  return allowed && !message.includes(allowed) ? `${named} (allowed: ${allowed})` : named;
}

/**
 * @param {HTMLFormElement} form
 * @param {FieldOf} fieldOf
 * @param {Problem} problem
 * @returns {boolean} whether the form has the field
 */
function showProblem(form, fieldOf, problem) {
  const { field } = problem;
  const axis = findAll("[data-grid]", HTMLInputElement, form).find((i) => field === `grid.${i.dataset.grid}`);
  const target = axis ?? (field && fieldOf(field));
  const note = target && target.closest(".field")?.querySelector("[data-error-for]");
  if (!target || !(note instanceof HTMLElement)) return false;
  note.textContent = textOf(problem);
  note.hidden = false;
  target.setAttribute("aria-invalid", "true");
  const details = target.closest("details");
  if (details) details.open = true;
  return true;
}
