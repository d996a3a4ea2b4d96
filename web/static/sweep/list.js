// The page of sweeps: fetches the list every few seconds while a sweep is open and the page is visible.

import { messageOf } from "../lib/api.js";
import { freshPage, replacePart } from "../lib/dom.js";
import { refreshTimes } from "../lib/times.js";

const POLL_MS = 5000;

async function refresh() {
  if (document.hidden || !document.querySelector("[data-open]")) return;
  const page = await freshPage();
  if (!page) return;
  replacePart(page, "[data-part=sweeps]");
  refreshTimes();
}

setInterval(
  () => refresh().catch((error) => console.warn("the sweeps could not be refreshed:", messageOf(error))),
  POLL_MS,
);
