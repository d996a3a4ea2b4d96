// Buttons that call the API. Their attributes are data-method, data-action (URL), data-body (JSON), data-confirm and
// data-then (URL, or "reload"). With data-undo (URL) and data-undo-said, the next page offers to undo the action.

import { messageOf, send } from "./api.js";
import { toast } from "./toast.js";

const UNDO = "undo"; // key in sessionStorage under which the notice is passed to the next page

document.addEventListener("click", async (event) => {
  const button = event.target instanceof Element ? event.target.closest("button[data-action]") : null;
  if (!(button instanceof HTMLButtonElement)) return;
  const { action = "", method = "POST", body, confirm: question, said, then, undo, undoSaid } = button.dataset;
  if (question && !confirm(question)) return;
  button.disabled = true;
  try {
    const answer = await send(method, action, body && JSON.parse(body));
    if (said) toast(said);
    if (undo) sessionStorage.setItem(UNDO, JSON.stringify({ undo, undoSaid, back: location.pathname }));
    if (then === "reload") location.reload();
    else if (then) location.href = then.replace("{id}", answer?.id ?? "");
  } catch (error) {
    toast(messageOf(error), "critical");
    button.disabled = false;
  }
});

const offered = sessionStorage.getItem(UNDO);
if (offered) {
  sessionStorage.removeItem(UNDO);
  /** @type {{undo: string, undoSaid: string, back: string}} */
  const { undo, undoSaid, back } = JSON.parse(offered);
  const act = async () => {
    try {
      await send("POST", undo);
      location.href = back;
    } catch (error) {
      toast(messageOf(error), "critical");
    }
  };
  toast(undoSaid, "info", { label: "Undo", act });
}
