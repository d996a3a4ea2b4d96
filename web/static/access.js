// The access page: creates tokens and webhooks, and shows the secret that comes back this once.

import { send } from "./api.js";
import { toast } from "./toast.js";

const bodies = {
  "/api/tokens": (form) => ({
    name: form.get("name").trim(),
    scope: form.get("scope"),
    expires_at: form.get("days") ? Date.now() / 1000 + Number(form.get("days")) * 86_400 : null,
  }),
  "/api/webhooks": (form) => ({ url: form.get("url").trim(), events: form.get("events").split(/[\s,]+/).filter(Boolean) }),
};

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

for (const form of document.querySelectorAll("form[data-create]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const url = form.dataset.create;
    try {
      const made = await send("POST", url, bodies[url](new FormData(form)));
      const label = made.secret ? `The secret of ${made.name}, shown this once:` : "The key of its signatures, shown this once:";
      show(form.parentElement.querySelector("[data-secret]"), label, made.secret ?? made.signing_key);
      form.reset();
    } catch (error) {
      toast(error.allowed ? `${error.message} (allowed: ${error.allowed})` : error.message, "critical");
    }
  });
}
