// Buttons that call the API: data-method, data-action (URL), data-body (JSON), data-confirm, data-then (URL, or "reload").

import { send } from "./api.js";
import { toast } from "./toast.js";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-action]");
  if (!button || (button.dataset.confirm && !confirm(button.dataset.confirm))) return;
  button.disabled = true;
  try {
    const body = button.dataset.body && JSON.parse(button.dataset.body);
    const answer = await send(button.dataset.method ?? "POST", button.dataset.action, body);
    if (button.dataset.said) toast(button.dataset.said);
    if (button.dataset.then === "reload") location.reload();
    else if (button.dataset.then) location.href = button.dataset.then.replace("{id}", answer?.id ?? "");
  } catch (error) {
    toast(error.message, "critical");
    button.disabled = false;
  }
});
