// The page of sweeps: takes the server's list again every few seconds while one of them goes on and the page can be seen.

import { messageOf } from "./api.js";
import { freshPage, replacePart } from "./dom.js";
import { refreshTimes } from "./times.js";

const POLL_MS = 5000;

async function refresh() {
  if (document.hidden || !document.querySelector("[data-open]")) return;
  const page = await freshPage();
  if (!page) return;
  replacePart(page, "[data-part=sweeps]");
  refreshTimes();
}

setInterval(() => refresh().catch((error) => console.warn("the sweeps could not be refreshed:", messageOf(error))), POLL_MS);
