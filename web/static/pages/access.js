// The access page: creates tokens, and shows the secret, which the server sends only once.

import { describe, send } from "../lib/api.js";
import { find, findAll, given } from "../lib/dom.js";
import { showSecret } from "../lib/secret.js";
import { toast } from "../lib/toast.js";

/** @param {FormData} form @param {string} name */
const text = (form, name) => String(form.get(name) ?? "").trim();

/** @param {FormData} form */
const tokenOf = (form) => ({
  name: text(form, "name"),
  scope: text(form, "scope"),
  user: text(form, "user") || null,
  expires_at: text(form, "days") ? Date.now() / 1000 + Number(text(form, "days")) * 86_400 : null,
});

for (const form of findAll("form[data-create]", HTMLFormElement)) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const made = await send("POST", given(form, "create"), tokenOf(new FormData(form)));
      const output = find("[data-secret]", HTMLElement, form.parentElement ?? document);
      showSecret(output, `The secret of ${made.name}, shown only once:`, made.secret);
      form.reset();
    } catch (error) {
      toast(describe(error), "critical");
    }
  });
}
