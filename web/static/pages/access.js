// The access page: creates tokens and webhooks, and shows the secret, which the server sends only once.

import { describe, send } from "../lib/api.js";
import { find, findAll, given } from "../lib/dom.js";
import { toast } from "../lib/toast.js";

/** @param {FormData} form @param {string} name */
const text = (form, name) => String(form.get(name) ?? "").trim();

/** @type {Record<string, (form: FormData) => object>} */
const bodies = {
  "/api/tokens": (form) => ({
    name: text(form, "name"),
    scope: text(form, "scope"),
    user: text(form, "user") || null,
    expires_at: text(form, "days") ? Date.now() / 1000 + Number(text(form, "days")) * 86_400 : null,
  }),
  "/api/webhooks": (form) => ({
    url: text(form, "url"),
    events: text(form, "events")
      .split(/[\s,]+/)
      .filter(Boolean),
  }),
};

/**
 * @param {HTMLElement} output
 * @param {string} label
 * @param {string} secret
 */
function show(output, label, secret) {
  const code = document.createElement("code");
  code.textContent = secret;
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.addEventListener("click", () => navigator.clipboard.writeText(secret).then(() => toast("Copied.")));
  const done = document.createElement("button");
  done.type = "button";
  done.textContent = "Done";
  done.addEventListener("click", () => location.reload());
  const row = document.createElement("span");
  row.className = "row";
  row.append(code, copy, done);
  output.replaceChildren(label, row);
  output.hidden = false;
}

for (const form of findAll("form[data-create]", HTMLFormElement)) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const url = given(form, "create");
    try {
      const made = await send("POST", url, bodies[url](new FormData(form)));
      const label = made.secret
        ? `The secret of ${made.name}, shown only once:`
        : "The key that signs its notifications, shown only once:";
      show(find("[data-secret]", HTMLElement, form.parentElement ?? document), label, made.secret ?? made.signing_key);
      form.reset();
    } catch (error) {
      toast(describe(error), "critical");
    }
  });
}
