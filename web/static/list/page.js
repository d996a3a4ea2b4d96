// Filters, sorts and updates the list of runs in place. Every address that this script opens also works without the
// script.

import { get, messageOf } from "../lib/api.js";
import { find, findAll, given } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { reach } from "../lib/reach.js";
import { counted, merge, noteSent, rowsOf } from "./rows.js";
import { sparkline } from "./spark.js";
import { refreshTimes } from "../lib/times.js";

const ACTIVE_MS = 2000;
const QUIET_MS = 5000;
const MOST_ROWS = 500;
const USUAL_ORDER = "-id";
export const LOADED = "list-loaded";

const list = () => find("[data-part=list]", HTMLElement);
const news = find("[data-news]", HTMLButtonElement);
let tag = "";
let asked = 0; // number of the newest request; answers to older requests are ignored
let over = false; // true while the pointer is over the rows

/** @param {string} address */
async function fetchPart(address, headers = {}) {
  const url = new URL(address, location.href);
  url.searchParams.set("part", "list");
  const answer = await reach(url.href, { headers: { Accept: "text/html", ...headers }, cache: "no-store" });
  if (answer.status === 304) return null;
  if (answer.redirected || answer.status === 401) return void location.reload(); // signed out
  const part = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-part=list]");
  if (!(part instanceof HTMLElement)) throw new Error(`the server answered ${answer.status}`);
  return { part, tag: answer.headers.get("ETag") ?? "" };
}

/**
 * Shows another address of the list without leaving the page.
 * @param {string} address
 * @param {"push" | "stay"} history
 */
export async function show(address, history = "push") {
  const mine = (asked += 1);
  list().setAttribute("aria-busy", "true");
  try {
    const got = await fetchPart(address);
    if (!got || mine !== asked) return;
    const box = find("#q", HTMLInputElement);
    const refused = got.part.querySelector("[data-refused]");
    const said = find("[data-filter-error]", HTMLElement);
    box.toggleAttribute("aria-invalid", Boolean(refused));
    if (refused) return said.replaceChildren(document.adoptNode(refused)); // the error appears beside the input; the list and the query do not change
    said.replaceChildren();
    tag = got.tag;
    list().replaceWith(document.adoptNode(got.part));
    if (history === "push") window.history.pushState(null, "", address);
    fill(new URL(address, location.href).searchParams);
    ready();
  } catch (error) {
    find("[data-filter-error]", HTMLElement).textContent = messageOf(error);
  } finally {
    list().removeAttribute("aria-busy");
  }
}

/** Fills in the form from the address. @param {URLSearchParams} now */
function fill(now) {
  const form = find("form[data-filter]", HTMLFormElement);
  find("[name=q]", HTMLInputElement, form).value = now.get("q") ?? "";
  find("[name=status]", HTMLSelectElement, form).value = now.get("status") ?? "";
  for (const name of ["mine", "hidden", "fold"])
    find(`[name=${name}]`, HTMLInputElement, form).checked = now.get(name) === "true";
  const [order, sort] = [find("#sort", HTMLSelectElement), now.get("sort") ?? USUAL_ORDER];
  if (![...order.options].some((option) => option.value === sort)) order.append(new Option(sort, sort)); // the list is sorted by a column that is not shown
  order.value = sort;
  for (const name of ["tag", "columns"]) keep(form, name, now.get(name));
  for (const name of ["q", "status", "tag", "sort"])
    keep(find("form[data-columns]", HTMLFormElement), name, now.get(name));
  find("[data-show-all]", HTMLElement).hidden = !["q", "status", "tag", "mine"].some((name) => now.get(name));
}

/** @param {HTMLFormElement} form @param {string} name @param {string | null} value */
function keep(form, name, value) {
  form.querySelector(`input[type=hidden][name=${name}]`)?.remove();
  if (!value) return;
  const field = document.createElement("input");
  Object.assign(field, { type: "hidden", name, value });
  form.append(field);
}

function ready() {
  const body = list().querySelector("tbody");
  if (body) noteSent(body);
  news.hidden = true;
  document.title = `${given(list(), "title")} · StableSSM`;
  refreshTimes();
  drawSparks().catch(() => null);
  dispatchEvent(new Event(LOADED));
}

async function poll() {
  if (document.hidden || new URLSearchParams(location.search).has("cursor")) return;
  const mine = asked;
  const limit = counted(list());
  const here = new URL(location.href);
  if (limit > 50) here.searchParams.set("limit", String(limit));
  const got = await fetchPart(here.href, tag ? { "If-None-Match": tag } : {});
  if (!got || mine !== asked || got.part.dataset.error !== undefined) return;
  const body = list().querySelector("tbody");
  const fresh = got.part.querySelector("tbody");
  document.title = `${given(got.part, "title")} · StableSSM`;
  if (!body || !fresh) {
    if (Boolean(body) === Boolean(fresh)) return;
    list().replaceWith(document.adoptNode(got.part)); // the list got its first run, or became empty
    return ready();
  }
  const waiting = merge(body, fresh, !over && !body.querySelector("form"));
  news.hidden = waiting === 0;
  news.textContent = "The list has changed: show it now";
  tag = waiting ? "" : got.tag;
  const pager = got.part.querySelector(".pager");
  if (pager && !waiting) list().querySelector(".pager")?.replaceWith(document.adoptNode(pager));
  refreshTimes();
  await drawSparks();
  dispatchEvent(new Event(LOADED));
}

/** Reads the curves of the changed rows in one request. */
async function drawSparks() {
  const rows = rowsOf(list()).filter(
    (row) => row.querySelector("[data-spark], [data-field=loss]") && row.dataset.drawn !== row.dataset.seq,
  );
  if (rows.length === 0) return;
  /** @type {{sparks: Record<string, {last: JsonNumber[], lost: number | null}>}} */
  const { sparks } = await get(`/api/sparks?runs=${rows.map((row) => row.dataset.run)}`);
  for (const row of rows) {
    row.dataset.drawn = row.dataset.seq;
    const spark = sparks[given(row, "run")];
    if (!spark) continue;
    const last = Float32Array.from(spark.last, Number);
    const loss = row.querySelector("[data-field=loss]");
    if (loss?.textContent?.trim() === "–") {
      loss.textContent = number(last[last.length - 1]);
      loss.classList.toggle("bad", !Number.isFinite(last[last.length - 1]));
    }
    const svg = row.querySelector("[data-spark]");
    if (svg) sparkline(svg, { last });
  }
}

document.addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a[data-list-link], a[data-more]") : null;
  if (!(link instanceof HTMLAnchorElement) || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const shown = counted(list());
  if (link.dataset.more !== undefined && (shown >= MOST_ROWS || new URLSearchParams(location.search).has("cursor")))
    return;
  event.preventDefault();
  const more = new URL(location.href);
  more.searchParams.set("limit", String(Math.min(MOST_ROWS, shown + Number(link.dataset.more ?? 0))));
  show(link.dataset.more === undefined ? link.href : more.href);
});
find("form[data-filter]", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  const asks = new URLSearchParams();
  for (const [name, value] of new FormData(find("form[data-filter]", HTMLFormElement)))
    if (value && value !== USUAL_ORDER) asks.append(name, String(value));
  show(asks.size ? `/?${asks}` : "/");
});
for (const select of findAll("#status, #sort", HTMLSelectElement)) {
  select.addEventListener("change", () => find("form[data-filter]", HTMLFormElement).requestSubmit());
}
document.addEventListener("pointerover", (event) => {
  over =
    event.target instanceof Element &&
    event.pointerType === "mouse" &&
    event.target.closest("tbody[data-api]") !== null;
});
document.documentElement.addEventListener("pointerleave", () => (over = false));
news.addEventListener("click", () => show(location.href, "stay"));
addEventListener("popstate", () => {
  // The form is filled in before the list arrives: if the user changes the form meanwhile, the change applies to this address.
  fill(new URL(location.href).searchParams);
  show(location.href, "stay");
});

async function keepCurrent() {
  await poll().catch((error) => console.warn("the list could not be refreshed:", messageOf(error)));
  setTimeout(
    keepCurrent,
    list().querySelector("[data-status-now=running], [data-status-now=queued]") ? ACTIVE_MS : QUIET_MS,
  );
}

ready();
setTimeout(keepCurrent, ACTIVE_MS);
