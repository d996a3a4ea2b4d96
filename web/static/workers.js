// The page of workers and queues: takes the server's tables again every few seconds, and sends a queue's limit.

import { send } from "./api.js";
import { refreshTimes } from "./times.js";
import { toast } from "./toast.js";

const POLL_MS = 5000;

async function refresh() {
  // not under the hands of somebody who types a limit
  if (document.hidden || document.activeElement?.closest("[data-limit]")) return;
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of ["queues", "workers"]) {
    const here = `[data-part=${part}]`;
    document.querySelector(here).replaceWith(document.adoptNode(page.querySelector(here)));
  }
  refreshTimes();
}

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-limit]");
  if (!form) return;
  event.preventDefault();
  const given = form.elements.max_running.value.trim();
  try {
    await send("PATCH", form.dataset.limit, { max_running: given === "" ? null : Number(given) });
    location.reload();
  } catch (error) {
    toast(error.allowed ? `${error.message} (allowed: ${error.allowed})` : error.message, "critical");
  }
});

setInterval(() => refresh().catch((error) => console.warn("the tables could not be refreshed:", error.message)), POLL_MS);
