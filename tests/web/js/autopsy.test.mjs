// The charts of an autopsy show every module and counterfactual, and numbers that no axis can show at the edge.
import assert from "node:assert/strict";
import { test } from "node:test";

const { counterfactualsFigure, modulesFigure, shownModules } = await import(
  `${process.env.STATIC}/run/autopsy_figures.js`
);
const COLORS = { danger: "#f00", muted: "#888", accent: "#00f", ink: "#000", "line-0": "#111", "line-1": "#222" };
const RUN = { step: [29, 30, 31], loss: [0.7, 0.6, NaN] };
const template = (...fields) => ({
  data: fields.map((field) => ({ meta: { field, value: 3.4e38 }, line: { color: "?" }, marker: { color: "?" } })),
  layout: { yaxis: { type: "log" } },
});
const MODULES = template("limit", "float32", "float64", "lost", "zero");
const CURVES = template("start", "recorded", "curve", "died");
const module = (name, largest, more = {}) => ({
  module: name,
  pass: "forward",
  largest,
  largest_float64: 7,
  nonfinite: 0,
  ...more,
});
const by = ({ data }) => Object.fromEntries(data.map((trace) => [trace.meta.field, trace]));

test("modules are rows in the order of computation, and what is not finite or 0 is marked at the edge", () => {
  const rows = [
    module("embed", 4.5),
    module("blocks.0.gate", 0),
    module("<b>ssm", 3e37, { nonfinite: 19, largest_float64: 1e39 }),
    module("head", "Infinity", { nonfinite: 1, largest_float64: "NaN" }),
    module("", "NaN", { pass: "loss", largest_float64: null, nonfinite: 1 }),
  ];
  const figure = modulesFigure(MODULES, rows, COLORS);
  const { limit, float32, float64, lost, zero } = by(figure);
  assert.deepEqual(float32.x, [4.5, NaN, 3e37, NaN, NaN]);
  assert.deepEqual(float64.x, [7, 7, 1e39, NaN, NaN]);
  assert.deepEqual(limit.x, [3.4e38, 3.4e38]);
  const [low, high] = figure.layout.xaxis.range;
  assert.ok(
    low < Math.log10(4.5) && high > 39,
    "the axis has room for marks beside the smallest and the largest number",
  );
  assert.deepEqual(zero.y, [1]);
  assert.deepEqual(lost.y, [2, 3, 4, 3]);
  assert.deepEqual(lost.marker.symbol, ["x", "triangle-up", "x", "x"]);
  assert.deepEqual(lost.marker.color, ["#f00", "#f00", "#f00", "#222"]);
  assert.equal(lost.text[0], "&lt;b>ssm: 19 numbers are not finite in float32; the largest finite magnitude is 3e37");
  assert.equal(lost.text[3], "head: NaN in float64");
  assert.deepEqual(figure.layout.yaxis.ticktext, ["embed", "blocks.0.gate", "&lt;b>ssm", "head", "loss"]);
});

test("of very many modules the chart shows the largest, in the order of computation, and all that are not finite", () => {
  const rows = Array.from({ length: 500 }, (_, i) => module(`m${i}`, i % 97, { nonfinite: i === 3 ? 1 : 0 }));
  const shown = shownModules(rows).map(({ module: name }) => Number(name.slice(1)));
  assert.equal(shown.length, 60);
  assert.ok(shown.includes(3) && shown.includes(96));
  assert.deepEqual(
    shown,
    [...shown].sort((a, b) => a - b),
  );
});

test("a counterfactual that died is a gap in its curve and a cross above it, and one that was not tried has no curve", () => {
  const one = (label, lives, steps, loss, change = "") => ({
    label,
    change,
    color: "line-0",
    lives,
    from_step: 30,
    step: steps.at(-1) ?? null,
    steps,
    loss,
  });
  const tried = [
    one("unchanged", false, [31, 32], [0.5, "NaN"], "unchanged"),
    one("rate", false, [31, 32], [0.4, "NaN"]),
    one("map <i>", true, [31, 32], [0.5, 0.25]),
    one("norm", null, [], []),
  ];
  const figure = counterfactualsFigure(CURVES, tried, RUN, COLORS);
  const curves = figure.data.filter(({ meta }) => meta.field === "curve");
  assert.deepEqual(
    curves.map(({ name, y, line }) => [name, y, line.dash]),
    [
      ["unchanged", [0.5, NaN], "dash"],
      ["rate", [0.4, NaN], "solid"],
      ["map &lt;i>", [0.5, 0.25], "solid"],
    ],
  );
  const { start, recorded, died } = by(figure);
  assert.deepEqual(
    [start.x, recorded.x, recorded.y],
    [
      [30, 30],
      [29, 30, 31],
      [0.7, 0.6, NaN],
    ],
  );
  assert.deepEqual(
    [died.x, died.text],
    [
      [32, 32],
      ["unchanged: died at step 32", "rate: died at step 32"],
    ],
  );
  assert.notEqual(died.y[0], died.y[1], "crosses of the same step do not cover one another");
  assert.equal(figure.layout.yaxis.type, "log");
  assert.equal(counterfactualsFigure(CURVES, [one("a", true, [31], [-3])], RUN, COLORS).layout.yaxis.type, "linear");
});
