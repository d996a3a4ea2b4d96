// The page of notifications: adds destinations, shows the key that signs events for programs, and sends test messages.

import { describe, send } from "../lib/api.js";
import { find, findAll, given } from "../lib/dom.js";
import { showSecret } from "../lib/secret.js";
import { toast } from "../lib/toast.js";

const format = find("#format", HTMLSelectElement);
const address = find("#url", HTMLInputElement);
format.addEventListener("change", () => {
  address.placeholder = format.selectedOptions[0].dataset.hint ?? "";
});

/** @param {FormData} form */
function webhookOf(form) {
  const url = String(form.get("url") ?? "").trim();
  const mail = form.get("format") === "email";
  const events = String(form.get("events") ?? "")
    .split(/[\s,]+/)
    .filter(Boolean);
  if (mail) return { url: url.startsWith("mailto:") ? url : `mailto:${url}`, events };
  return { url, events, format: form.get("format") };
}

for (const form of findAll("form[data-add]", HTMLFormElement)) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const made = await send("POST", given(form, "add"), webhookOf(new FormData(form)));
      if (made.format === "json") {
        showSecret(
          find("[data-secret]", HTMLElement),
          "The key that signs its events, shown only once:",
          made.signing_key,
        );
        form.reset();
      } else location.reload();
    } catch (error) {
      toast(describe(error), "critical");
    }
  });
}

for (const button of findAll("button[data-test]", HTMLButtonElement)) {
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const tested = await send("POST", given(button, "test"));
      toast(
        tested.accepted ? `The test message was accepted: ${tested.answer}.` : `The test failed: ${tested.answer}.`,
        tested.accepted ? "info" : "critical",
      );
    } catch (error) {
      toast(describe(error), "critical");
    }
    button.disabled = false;
  });
}
