import assert from "node:assert/strict";
import test from "node:test";

const at = (name) => import(`${process.env.STATIC}/${name}`);
const { ago, duration, escapeMarkup, eta, number, parseIndices } = await at("format.js");
const { differences, parseField, parseGrid, sectionOf, sentOf, setPath } = await at("config_form.js");
const { eigenvalueItems, topEigenvalues } = await at("pick.js");
const { lossLines } = await at("grid.js");
const { sparkPoints } = await at("spark.js");
const { runItems } = await at("run_items.js");

test("numbers are short, and what is no number is named", () => {
  const shown = [0, 412, 1234567, 0.00012345, 0.5, "NaN", Infinity, "-Infinity", null, 2.5e9, 1e6, 1.05e-5].map((v) => number(v));
  assert.deepEqual(shown, ["0", "412", "1,234,567", "1.23e-4", "0.5", "NaN", "+Inf", "−Inf", "–", "2.5e9", "1,000,000", "1.05e-5"]);
});

test("durations and the time left", () => {
  assert.deepEqual([0.2, 59, 61, 3700, 90000, null, NaN].map((s) => duration(s)), ["< 1 s", "59 s", "1 min 01 s", "1 h 01 min", "1 d 1 h", "–", "–"]);
  assert.equal(eta(400, 1000, 100), 6);
  assert.equal(eta(400, 1000, 0), null);
  assert.equal(eta(1200, 1000, 5), null);
  assert.equal(ago(1000, 1002), "just now");
  assert.equal(ago(1000, 1130), "2 min ago");
  assert.equal(ago(1000 + 30 * 86_400, 1000), "in 30 d");
  assert.equal(ago(1003, 1000), "just now");
});

test("markup in names becomes text", () => {
  assert.equal(escapeMarkup('<b onx="1">&'), '&lt;b onx="1">&amp;');
});

test("eigenvalues as people write them", () => {
  assert.deepEqual(parseIndices("3, 17; 60-70 x -2 1e3", 64), [3, 17, 60, 61, 62, 63]);
  assert.deepEqual(parseIndices("0-999999999", 4), [0, 1, 2, 3]);
});

test("the form sends what differs, with the types the API wants", () => {
  assert.equal(parseField("number", " 1e-3 "), 0.001);
  assert.equal(parseField("integer", "ten"), "ten");
  assert.deepEqual(parseField("pair", "0.5, 0.9"), [0.5, 0.9]);
  assert.deepEqual(parseField("tags", "a, b,,"), ["a", "b"]);
  assert.equal(parseField("number", ""), null);
  assert.deepEqual(parseGrid("direct, best"), ["direct", "best"]);
  assert.deepEqual(parseGrid("0.1,1e-3"), [0.1, 0.001]);
  assert.equal(parseGrid("  "), null);
  assert.deepEqual(parseGrid("true, null, 3, x"), [true, null, 3, "x"]);
  assert.deepEqual(parseGrid("[0.5, 0.9], [0.1, 0.9]"), [[0.5, 0.9], [0.1, 0.9]]);
  const config = {};
  setPath(config, "task.name", "digits");
  setPath(config, "model.reparameterization.name", "exp");
  setPath(config, "model.d_state", 64);
  const defaults = { task: { name: "x" }, model: { d_state: 64, reparameterization: { name: "best" } } };
  assert.deepEqual(differences(config, defaults), { task: { name: "digits" }, model: { reparameterization: { name: "exp" } } });
});

test("of a layer is sent what is not as usual", () => {
  const mamba = { name: "mamba", d_state: 16, expand: 2 };
  assert.equal(sectionOf({ ...mamba }, mamba), "mamba");
  assert.deepEqual(sectionOf({ ...mamba, d_state: 4 }, mamba), { name: "mamba", d_state: 4 });
  const hyena = { name: "hyena", inner: { name: "stable_ssm", d_state: null } };
  assert.equal(sectionOf({ name: "hyena", inner: { name: "stable_ssm" } }, hyena), "hyena");
  assert.deepEqual(sectionOf({ name: "hyena", inner: { name: "s4d", d_state: 64 } }, hyena), { name: "hyena", inner: { name: "s4d", d_state: 64 } });
  const defaults = { model: { layer: "stable_ssm", layers: null, d_model: 64, reparameterization: { name: "best", time: "discrete", b: 0.5 } } };
  const sent = (model) => sentOf({ model: { d_model: 64, layers: null, ...model } }, defaults, { mamba }).model;
  assert.equal(sent({ layer: { name: "stable_ssm" }, reparameterization: { name: "best", time: "discrete", b: 0.5 } }), undefined);
  assert.deepEqual(sent({ layer: mamba, reparameterization: { name: "native", b: 0.5 } }), { layer: "mamba" });
  assert.deepEqual(sent({ layer: mamba, reparameterization: { name: "best", b: 0.03 } }), { layer: "mamba", reparameterization: { name: "best", b: 0.03 } });
  assert.deepEqual(sent({ layer: mamba, layers: ["s4d", "lru"], reparameterization: { name: "native", b: 0.5 } }), { layers: ["s4d", "lru"] });
});

test("the largest eigenvalues are drawn, the lost ones first, and keep their colours", () => {
  const data = { width: 4, max: Float32Array.of(1, 9, 3, NaN, 2, 1, 4, NaN), nonfinite: Float32Array.of(0, 0, 0, 1, 0, 0, 0, 1) };
  assert.deepEqual(topEigenvalues(data, 2), [1, 3]);
  assert.deepEqual(topEigenvalues(data, 9), [0, 1, 2, 3]);
  const first = eigenvalueItems([1, 3]);
  const later = eigenvalueItems([2, 3], first);
  assert.equal(later[1].color, first[1].color);
  assert.notEqual(later[0].color, later[1].color);
  assert.equal(eigenvalueItems(Array.from({ length: 99 }, (_, i) => i)).length, 24);
});

const run = (id, name, lr, status, loss) => ({
  id, name: null, status, url: `/runs/${id}`, result: loss === undefined ? null : { train_loss: loss },
  config: { model: { reparameterization: { name } }, optimizer: { lr }, train: { seed: 0 } },
  forms: [{ map: name, time: "discrete" }],
});

test("a sweep's chart has medians with quartiles, and marks every cell that lost a run", () => {
  const cell = (lost, total, median, q25 = median, q75 = median) => ({ lost, total, loss: { median, q25, q75 } });
  const grid = {
    rows: { path: "model.reparameterization.name", values: ["best", "direct"] },
    columns: { path: "optimizer.lr", values: [1, 0.1] },
    cells: [[cell(0, 2, null), cell(0, 2, 0.5, 0.4, 0.75)], [cell(2, 2, null), cell(1, 2, 2)]],
  };
  const { data, items, spreads, lost, title, log } = lossLines(grid, (color) => color.startsWith("map-"));
  assert.deepEqual(items.map(({ label, color }) => [label, color]), [["best", "map-best"], ["direct", "map-direct"]]);
  assert.deepEqual([title, log, [...data["sweep/row-0"].step]], ["learning rate", true, [0.1, 1]]);
  assert.deepEqual([...data["sweep/row-0"].last], [0.5, NaN]);
  assert.deepEqual([...data["sweep/row-1"].nonfinite], [1, 1]);
  assert.deepEqual(lost["row-1"], ["direct learning rate 0.1: 1 of 2 lost", "direct learning rate 1: 2 of 2 lost"]);
  assert.deepEqual([spreads["row-0"].array[0], Math.round(1e6 * spreads["row-0"].arrayminus[0])], [0.25, 100000]);
});

test("a sweep over layers or models is drawn in the layers' colours, under their names", () => {
  const cell = { lost: 0, total: 1, loss: { median: 1, q25: 1, q75: 1 } };
  const known = (color) => color.startsWith("layer-");
  const lines = (path, values) => lossLines({ rows: { path, values }, columns: { path: "optimizer.lr", values: [0.1] }, cells: values.map(() => [cell]) }, known).items;
  assert.deepEqual(lines("model.layer", ["s4d", { name: "mamba", d_state: 4 }]).map((i) => [i.label, i.color]), [["s4d", "layer-s4d"], ["mamba", "layer-mamba"]]);
  const models = [{ layer: "mamba", reparameterization: { name: "best" } }, { d_model: 4 }];
  assert.deepEqual(lines("model", models).map((i) => [i.label, i.color]), [["mamba, best", "line-0"], ['{"d_model":4}', "line-1"]]);
});

test("runs of one map share its colour and differ in dash", () => {
  const items = runItems([run(1, "best", 1), run(2, "best", 2), run(3, "exp", 1)]);
  assert.deepEqual(items.map((i) => i.color), ["map-best", "map-best", "map-exp"]);
  assert.notEqual(items[0].dash, items[1].dash);
});

test("a sparkline marks where the loss stops being a number", () => {
  const { points, lost } = sparkPoints({ last: Float32Array.of(1, 0.1, 0.01, NaN) });
  assert.equal(points.split(" ").length, 3);
  assert.ok(lost > 90);
  assert.equal(sparkPoints({ last: Float32Array.of(1, 2) }).lost, null);
});
