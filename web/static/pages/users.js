// Forms about users: your display name, and each user's limits.

import { describe, send } from "../lib/api.js";
import { findAll, given } from "../lib/dom.js";
import { toast } from "../lib/toast.js";

const GIGABYTE = 1e9;

/** @param {FormData} form @param {string} name @param {number} [unit] */
function limit(form, name, unit = 1) {
  const text = String(form.get(name) ?? "").trim();
  return text === "" ? null : Math.round(Number(text) * unit);
}

/** @type {Record<string, (form: FormData) => object>} */
const bodies = {
  name: (form) => ({ name: String(form.get("name") ?? "").trim() }),
  user: (form) => ({
    may_change_all: form.has("may_change_all"),
    max_running: limit(form, "max_running"),
    max_queued: limit(form, "max_queued"),
    max_bytes: limit(form, "max_bytes", GIGABYTE),
  }),
};

for (const kind of Object.keys(bodies)) {
  for (const form of findAll(`form[data-${kind}]`, HTMLFormElement)) {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        await send("PATCH", given(form, kind), bodies[kind](new FormData(form)));
        location.reload();
      } catch (error) {
        toast(describe(error), "critical");
      }
    });
  }
}
