// Buttons that call the API: data-method, data-action (URL), data-body (JSON), data-confirm, data-then (URL, or "reload").

import { messageOf, send } from "./api.js";
import { toast } from "./toast.js";

document.addEventListener("click", async (event) => {
  const button = event.target instanceof Element ? event.target.closest("button[data-action]") : null;
  if (!(button instanceof HTMLButtonElement)) return;
  const { action = "", method = "POST", body, confirm: question, said, then } = button.dataset;
  if (question && !confirm(question)) return;
  button.disabled = true;
  try {
    const answer = await send(method, action, body && JSON.parse(body));
    if (said) toast(said);
    if (then === "reload") location.reload();
    else if (then) location.href = then.replace("{id}", answer?.id ?? "");
  } catch (error) {
    toast(messageOf(error), "critical");
    button.disabled = false;
  }
});
