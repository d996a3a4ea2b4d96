import assert from "node:assert/strict";
import test from "node:test";

const at = (name) => import(`${process.env.STATIC}/${name}`);
const { readView, scaleOf, withScale, writeView } = await at("run/view.js");
const { lone, smoothed } = await at("run/smooth.js");
const { firstFrom, nearest, rowsBetween, time, tokens } = await at("run/clock.js");
const { beside, readout, sentenceOf } = await at("run/readout.js");
const { RunState } = await at("run/view_state.js");
const { byDecay, reasons } = await at("run/reasons.js");
const { dress } = await at("run/dress.js");
const { traced } = await at("chart/tail.js");

const series = (step, rows) => {
  const last = Float32Array.from(rows.flat());
  const finite = last.map((v) => (Number.isFinite(v) ? v : NaN));
  return {
    step: Float64Array.from(step),
    width: rows[0].length,
    last,
    min: finite,
    max: finite,
    nonfinite: last.map((v) => (Number.isFinite(v) ? 0 : 1)),
  };
};

test("the address stores the view, and invalid parts fall back to the defaults", () => {
  const search =
    "?layer=1&from=10&to=90&eigenvalues=3%2C+7&scale=log&scales=loss%3Alinear&smooth=0.9&axis=tokens&rows=end&top=16";
  const RECORDS = ["0", "1", "1.dt_bias"];
  const view = readView(search, RECORDS);
  assert.deepEqual(
    { ...view },
    {
      layer: "1",
      from: 10,
      to: 90,
      eigenvalues: "3, 7",
      top: "16",
      scale: "log",
      scales: "loss:linear",
      axis: "tokens",
      rows: "end",
      smooth: 0.9,
    },
  );
  assert.deepEqual(readView(writeView(view), RECORDS), view);
  const nonsense = readView("?layer=7&from=9&to=3&scale=<b>&scales=loss:wild,<i>&smooth=4&axis=null&top=99", RECORDS);
  assert.deepEqual(nonsense, readView("", RECORDS));
  assert.equal(writeView(nonsense, "?token=1"), "?token=1");
  assert.equal(readView("", RECORDS, "1").layer, "1");
  assert.equal(readView("?layer=1.dt_bias", RECORDS).layer, "1.dt_bias");
  assert.equal(writeView(readView("?layer=0", RECORDS, "1"), "", "1"), "?layer=0");
});

test("smoothing starts without a bias to zero, keeps gaps and can continue piece by piece", () => {
  const y = Float32Array.of(2, 2, NaN, Infinity, 2, 6);
  const whole = smoothed(y, 0.5);
  assert.deepEqual([...whole.y.subarray(0, 5)], [2, 2, NaN, NaN, 2]);
  assert.ok(whole.y[5] > 2 && whole.y[5] < 6);
  const first = smoothed(y.subarray(0, 5), 0.5);
  const second = smoothed(y.subarray(4), 0.5, first.before); // a tail begins with the point drawn last
  assert.deepEqual([...second.y], [...whole.y.subarray(4)]);
  assert.deepEqual(lone(Float32Array.of(1, NaN, 3, NaN)), [4, 0, 4, 0]);
  assert.equal(lone(Float32Array.of(1, 2)), null);
});

test("smoothing adds a line, fades the raw line and does not change the marks", () => {
  const line = { meta: { field: "last" }, mode: "lines", x: [1, 2], y: Float32Array.of(1, 3), line: { color: "#000" } };
  const mark = { meta: { field: "nonfinite" }, mode: "markers", x: [2], y: [0.97] };
  const { data } = dress({ data: [line, mark], layout: { xaxis: {} } }, { smooth: 0.9, axis: tokens(10) });
  assert.equal(data.length, 3);
  assert.deepEqual([...data[0].y], [1, 3]);
  assert.ok(data[0].opacity < 0.5 && data[1].opacity === undefined);
  assert.ok(data[1].y[1] < 3);
  assert.deepEqual([data[1].x, data[2].x, data[2].y], [[10, 20], [20], [0.97]]);
});

test("the cursor finds the nearest recorded step, and a range includes one extra row on each side", () => {
  const steps = [1, 5, 9];
  assert.deepEqual(
    [0, 3, 3.1, 8, 99].map((s) => nearest(steps, s)),
    [0, 0, 1, 2, 2],
  );
  assert.equal(nearest([], 3), -1);
  assert.deepEqual(
    [1, 2, 10].map((s) => firstFrom(steps, s)),
    [0, 1, 3],
  );
  assert.deepEqual([...rowsBetween(series([1, 2, 3, 4, 5], [[1], [2], [3], [4], [5]]), 2.5, 3.5).step], [2, 3, 4]);
});

test("the time axis sums the step times and converts times back to steps", () => {
  const axis = time({ step: Float64Array.of(1, 2, 4), last: Float32Array.of(0.5, 0.25, 1) });
  assert.deepEqual([1, 2, 3, 4, 6].map(axis.of), [0.5, 0.75, 1.75, 2.75, 4.75]);
  for (const step of [1, 2.5, 4, 9]) assert.ok(Math.abs(axis.back(axis.of(step)) - step) < 1e-9);
});

test("the values of a chart fit beside it, otherwise below or above it, and never over it", () => {
  const panel = { width: 200, height: 150 };
  const chart = { left: 20, right: 690, top: 340, bottom: 560 };
  assert.deepEqual(beside(chart, panel, 1400, 900), [696, 340]);
  assert.deepEqual(beside({ ...chart, left: 700, right: 1380 }, panel, 1400, 900), [494, 340]);
  assert.deepEqual(beside({ ...chart, right: 370 }, panel, 390, 844), [20, 566]);
  assert.deepEqual(beside({ ...chart, right: 370, bottom: 800 }, panel, 390, 844), [20, 184]);
  assert.equal(beside({ left: 0, right: 390, top: 0, bottom: 844 }, panel, 390, 844), null);
});

test("a chart without a value at the step is described by its last step, not by an empty list", () => {
  assert.equal(sentenceOf(null), "No data yet.");
  assert.equal(sentenceOf({ step: 37, readings: [] }), "Shows the steps up to 37.");
  const readings = [
    { name: "train", text: "0.5", color: "accent" },
    { name: "eval", text: "NaN", color: "line-1" },
  ];
  assert.equal(sentenceOf({ step: 1200, readings }), "At step 1,200: train 0.5, eval NaN.");
});

test("all charts of an ended run have the same range, from its first recorded step to its last", () => {
  const stores = new Map([
    ["train/loss", { lastStep: 600, data: { step: Float64Array.from([401, 600]) } }],
    ["eval/loss", { lastStep: 500, data: { step: Float64Array.from([450, 500]) } }],
    ["optim/lr", { lastStep: 0, data: { step: new Float64Array() } }],
  ]);
  const state = new RunState({ stores, layer: "0" }, { view: { from: null, to: null }, records: [] });
  const [first, last] = state.range;
  assert.equal(first, 400);
  assert.ok(last > 600 && last < 610);
  stores.clear();
  assert.equal(state.range, null);
});

test("the readout at the cursor lists the values and names NaN", () => {
  const figure = {
    data: [
      { meta: { field: "max", series: "ssm/{layer}/x" }, fill: "tonexty" },
      { meta: { field: "last", series: "ssm/{layer}/x", each: "eigenvalue" }, name: "λ {key}" },
    ],
  };
  const items = [{ key: "2", column: 2, color: "line-0" }];
  const shown = readout(
    figure,
    {
      "ssm/1/x": series(
        [10, 20],
        [
          [1, 2, 3],
          [1, 5, NaN],
        ],
      ),
    },
    { layer: 1, items, step: 19 },
  );
  assert.equal(shown.step, 20);
  assert.deepEqual(
    shown.readings.map((r) => `${r.name}: ${r.text}`),
    ["all: 1 to 5 · median 3", "NaN: 1 of 3", "λ 2: NaN"],
  );
  assert.equal(readout(figure, {}, { layer: 1, items, step: 1 }), null);
});

test("eigenvalues get their own line for reasons that follow from the numbers", () => {
  const distance = series(
    [1, 2, 3],
    [
      [0.5, 0.1, 0.2],
      [0.5, -0.1, 0.3],
      [0.5, 0.1, 0.05],
    ],
  );
  const why = reasons({
    distance,
    eigenvalue: series(
      [1, 3],
      [
        [0.5, 0.9, 0.8],
        [0.5, 0.9, 0.95],
      ],
    ),
    layer: 0,
    divergence: { layer: 0, eigenvalue: 0 },
  });
  assert.deepEqual([...why].sort(), [
    [0, "blamed"],
    [1, "first outside (step 2)"],
    [2, "nearest to the boundary, moved most"],
  ]);
  assert.equal(reasons({ distance, layer: 1, divergence: { layer: 0, eigenvalue: 0 } }).get(0), undefined);
  assert.deepEqual(byDecay(distance, "start"), [0, 2, 1]);
  assert.deepEqual(
    byDecay(
      series(
        [1, 2],
        [
          [0.5, -0.1, NaN],
          [NaN, NaN, NaN],
        ],
      ),
      "end",
    ),
    [0, 1, 2],
  );
});

test("a dashed line drawn in pieces continues its dash pattern and restarts it after a gap", () => {
  const pen = { beginPath() {}, moveTo() {}, lineTo() {} };
  const whole = [
    [0, 0],
    [3, 4],
    [6, 8],
    [6, 18],
  ];
  const pieces = whole.slice(1).reduce((along, point, k) => traced(pen, [whole[k], point], along), 0);
  assert.deepEqual([pieces, traced(pen, whole, 0)], [20, 20]);
  assert.equal(
    traced(
      pen,
      [
        [0, 0],
        [3, 4],
        [4, NaN],
        [5, 0],
        [5, 2],
      ],
      7,
    ),
    2,
  );
});

test("the scale of a chart takes precedence over the scale of the page", () => {
  const view = { scale: "log", scales: withScale(withScale("", "loss", "linear"), "lr", "log") };
  assert.deepEqual(
    ["loss", "lr", "weight"].map((chart) => scaleOf(view, chart)),
    ["linear", "log", "log"],
  );
  assert.equal(withScale(view.scales, "loss", "log"), "lr:log,loss:log");
});

test("eigenvalues named by the verdict show their reasons, but only on their own layer", () => {
  const distance = series(
    [1, 2],
    [
      [0.5, 0.4],
      [-0.1, 0.3],
    ],
  );
  const events = [
    { kind: "crossing", step: 12_345, layer: 1, eigenvalue: 1 },
    { kind: "overflow_near", step: 3, layer: 1, eigenvalue: 0 },
    { kind: "crossing", step: 12_400, layer: 1, eigenvalue: 0 },
  ];
  const verdict = { events, culprit: { layer: 1, eigenvalue: 1 }, divergence: { layer: 1, eigenvalue: 0 } };
  const why = reasons({ distance, layer: 1, ...verdict });
  assert.equal(why.get(1), "blamed, first outside (step 12,345)");
  assert.equal(why.get(0), "crossed (step 12,400), farthest outside");
  assert.equal(reasons({ distance, layer: 0, ...verdict }).get(0), "first outside (step 2), farthest outside");
});
