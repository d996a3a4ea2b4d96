// The page of workers and queues: takes the server's tables again every few seconds, and sends a queue's limit.

import { describe, messageOf, send } from "./api.js";
import { find, freshPage, given, replacePart } from "./dom.js";
import { refreshTimes } from "./times.js";
import { toast } from "./toast.js";

const POLL_MS = 5000;

async function refresh() {
  // not while a limit is being typed
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

setInterval(() => refresh().catch((error) => console.warn("the tables could not be refreshed:", messageOf(error))), POLL_MS);
