// Shows the time of the server's last response on every page while the server does not respond.

import { find } from "./dom.js";
import { AWAY, HERE, reach } from "./reach.js";

const LOOK_MS = 5000;
const LOOK_AGAIN_MS = 2000;
const TRIES = 2; // number of consecutive unanswered requests that count as an outage

const note = find("[data-offline]", HTMLElement);
let heard = Date.now();
let failed = 0;

addEventListener(HERE, () => {
  heard = Date.now();
  failed = 0;
  note.hidden = true;
});

addEventListener(AWAY, () => {
  failed += 1;
  if (failed < TRIES || !note.hidden) return;
  const since = new Date(heard).toLocaleTimeString();
  note.textContent = `Offline: the server has not answered since ${since}. This page shows the state at that time and keeps trying.`;
  note.hidden = false;
});

async function look() {
  const quiet = Date.now() - heard >= LOOK_MS || failed > 0;
  if (quiet && !document.hidden) await reach("/healthz", { cache: "no-store" }).catch(() => null);
  setTimeout(look, failed > 0 ? LOOK_AGAIN_MS : LOOK_MS);
}

document.addEventListener(
  "visibilitychange",
  () => document.hidden || failed === 0 || reach("/healthz").catch(() => null),
);
setTimeout(look, LOOK_MS);
