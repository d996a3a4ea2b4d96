// The page of workers and queues: fetches the tables every few seconds, and sends a queue's limit.

import { describe, messageOf, send } from "../lib/api.js";
import { find, freshPage, given, replacePart } from "../lib/dom.js";
import { refreshTimes } from "../lib/times.js";
import { toast } from "../lib/toast.js";

const POLL_MS = 5000;

async function refresh() {
  // do not replace the tables while the user types a limit
  if (document.hidden || document.activeElement?.closest("[data-limit]")) return;
  const page = await freshPage();
  if (!page) return;
  replacePart(page, "[data-part=queues]");
  replacePart(page, "[data-part=workers]");
  refreshTimes();
}

document.addEventListener("submit", async (event) => {
  const form = event.target instanceof Element ? event.target.closest("form[data-limit]") : null;
  if (!(form instanceof HTMLFormElement)) return;
  event.preventDefault();
  const limit = find("[name=max_running]", HTMLInputElement, form).value.trim();
  try {
    await send("PATCH", given(form, "limit"), { max_running: limit === "" ? null : Number(limit) });
    location.reload();
  } catch (error) {
    toast(describe(error), "critical");
  }
});

setInterval(
  () => refresh().catch((error) => console.warn("the tables could not be refreshed:", messageOf(error))),
  POLL_MS,
);
