// The run page goes through its states with nothing faked but the network: fetch, EventSource and the clock.

import assert from "node:assert/strict";
import test from "node:test";

const at = (name) => import(`${process.env.STATIC}/${name}`);
const { RunModel } = await at("run/model.js");
const { RunPage } = await at("run/page.js");

globalThis.dispatchEvent = () => true;
const FIGURES = { loss: { scope: "run", series: ["train/loss"] } };

/** The server: answers by the end of a URL's path, and the streams that the page opens. */
class Server {
  streams = [];
  asked = [];
  away = false;
  seq = 7;
  verdict = { cause: null, unstable: null, events: [], summary: "So far, at step 2: fine." };
  run = { status: "running", status_reason: "", step: 2, steps_per_second: 5, unstable: null };

  constructor(t) {
    t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
    t.after(() => this.streams.forEach((stream) => stream.close()));
    const server = this;
    globalThis.fetch = async (url) => server.answer(String(url));
    globalThis.EventSource = class FakeStream extends EventTarget {
      static CLOSED = 2;
      readyState = 0;
      constructor(url) {
        super();
        this.url = url;
        server.streams.push(this);
      }
      close() {
        this.readyState = 2;
      }
      tell(name, data) {
        this.dispatchEvent(Object.assign(new Event(name), { data: JSON.stringify(data) }));
      }
    };
  }

  answer(url) {
    this.asked.push(url);
    if (this.away) throw new TypeError("fetch failed");
    if (url.startsWith("/overview")) return new Response(overview(this.seq, url.includes("scalars") ? [1, 2] : []));
    if (url === "/verdict") return Response.json(this.verdict);
    return Response.json(url === "/alerts" ? { alerts: [] } : { ...this.run });
  }

  get stream() {
    return this.streams.at(-1);
  }
}

/** The binary answer of GET overview: the loss at these steps, or no series. */
function overview(seq, steps) {
  const arrays = { step: ["f8", 0, steps.length], value: ["f4", 8 * steps.length, steps.length] };
  const series = steps.length ? { "train/loss": { width: 1, last_step: steps.at(-1), arrays } } : {};
  const text = JSON.stringify({ seq, series });
  const head = new TextEncoder().encode(text.padEnd(Math.ceil((text.length + 4) / 8) * 8 - 4)); // arrays begin at multiples of 8
  const body = new Uint8Array(4 + head.length + 12 * steps.length);
  new DataView(body.buffer).setUint32(0, head.length, true);
  body.set(head, 4);
  body.set(new Uint8Array(Float64Array.from(steps).buffer), 4 + head.length);
  body.set(new Uint8Array(Float32Array.from(steps, (s) => 1 / s).buffer), 4 + head.length + 8 * steps.length);
  return body;
}

function pageOf(status) {
  const model = new RunModel({ series: "/series", overview: "/overview", alerts: "/alerts" }, "0");
  model.figures = FIGURES;
  const urls = { run: "/run", verdict: "/verdict", stream: "/stream" };
  return new RunPage({ urls, model, status, wanted: () => ({ eigenvalues: [], top: 8, rows: "index" }) });
}

const settle = () => new Promise((done) => setImmediate(done));
const points = (step, value) => ({
  seq: step,
  step,
  steps_per_second: 5,
  series: [{ name: "train/loss", width: 1, step: [step], value: [value] }],
});

test("the page reads a running run, then follows it live from the next step", async (t) => {
  const server = new Server(t);
  const page = pageOf("running");
  assert.equal(page.state, "loading");
  await page.load();
  assert.equal(page.state, "loading"); // the stream is not open yet
  assert.equal(server.stream.url, "/stream?after=7&series=train%2Floss");
  server.stream.onopen();
  assert.equal(page.state, "live");
  server.stream.tell("points", points(3, 0.25));
  assert.deepEqual([...page.model.stores.get("train/loss").data.step], [1, 2, 3]);
  server.stream.tell("live", { push: false });
  assert.equal(page.state, "live");
});

test("the end of the run closes the stream, and the page reads the remaining data", async (t) => {
  const server = new Server(t);
  const page = pageOf("running");
  const replaced = [];
  page.display = { replace: async (parts) => void replaced.push(parts) };
  await page.load();
  server.stream.onopen();
  server.run.status = "finished";
  server.stream.tell("status", { status: "finished", step: 9 });
  await settle();
  assert.equal(page.state, "ended");
  assert.equal(server.stream.readyState, 2);
  assert.deepEqual(replaced, [null]); // all parts of the page
});

test("the page reads a run again if the run ended during the first read", async (t) => {
  const server = new Server(t);
  const page = pageOf("running");
  server.run.status = "diverged";
  await page.load();
  assert.equal(page.state, "ended");
  assert.equal(server.streams.length, 0);
  assert.equal(server.asked.filter((url) => url.includes("part=scalars")).length, 2);
});

test("the page reads an ended run once and opens no stream", async (t) => {
  const server = new Server(t);
  const page = pageOf("finished");
  await page.load();
  assert.deepEqual([page.state, server.streams.length], ["ended", 0]);
});

test("the page polls after a refused stream until the server accepts a stream again", async (t) => {
  const server = new Server(t);
  const page = pageOf("running");
  await page.load();
  server.stream.close();
  server.stream.onerror();
  assert.equal(page.state, "polling");
  server.seq = 11;
  t.mock.timers.tick(5000);
  await settle();
  assert.match(server.stream.url, /after=11/);
  server.stream.onopen();
  assert.equal(page.state, "live");
  server.stream.onerror(); // not closed: the browser opens it again
  assert.equal(page.state, "live");
});

test("a page that cannot reach the server polls until the run has ended", async (t) => {
  const server = new Server(t);
  const page = pageOf("running");
  server.away = true;
  await page.load();
  assert.equal(page.state, "polling");
  t.mock.timers.tick(5000);
  await settle();
  assert.equal(page.state, "polling");
  server.away = false;
  server.run.status = "finished";
  t.mock.timers.tick(5000);
  await settle();
  assert.deepEqual([page.state, server.streams.length], ["ended", 0]);
  assert.equal(page.model.newest("train/loss"), 0.5);
});

test("undone steps are removed from the data, and a reset reads all data again", async (t) => {
  const server = new Server(t);
  const page = pageOf("running");
  await page.load();
  server.stream.onopen();
  server.stream.tell("status", { status: "running", truncated_from: 2 });
  await settle();
  assert.deepEqual([...page.model.stores.get("train/loss").data.step], [1]);
  server.stream.tell("reset", {});
  assert.equal(page.state, "loading");
  await settle();
  assert.deepEqual([...page.model.stores.get("train/loss").data.step], [1, 2]);
  assert.equal(server.streams.length, 2);
});

test("the verdict on an open run is read again after a second, and its parts are replaced when its gist changes", async (t) => {
  const server = new Server(t);
  const page = pageOf("running");
  const [told, replaced] = [[], []];
  page.display = { verdict: (summary) => told.push(summary), replace: async (parts) => void replaced.push(parts) };
  assert.ok(page.verdictIsOld);
  const first = page.readVerdict();
  assert.ok(!page.verdictIsOld, "one request at a time");
  await first;
  assert.ok(!page.verdictIsOld);
  t.mock.timers.tick(1001);
  assert.ok(page.verdictIsOld);
  server.verdict.summary = "So far, at step 9: fine.";
  await page.readVerdict();
  assert.deepEqual(told, ["So far, at step 2: fine.", "So far, at step 9: fine."]);
  assert.equal(replaced.length, 1);
  server.verdict.events = [{ kind: "crossing" }];
  await page.readVerdict();
  assert.deepEqual(replaced.at(-1), ["verdict", "why"]);
  assert.equal(replaced.length, 2);
  server.away = true;
  await page.readVerdict(); // the next points ask again
  server.away = false;
  page.status = "finished";
  t.mock.timers.tick(5000);
  assert.ok(!page.verdictIsOld, "the verdict on an ended run does not change");
});
