import assert from "node:assert/strict";
import test from "node:test";

const at = (name) => import(`${process.env.STATIC}/${name}`);
const { ago, duration, escapeMarkup, eta, number, parseIndices } = await at("format.js");
const { differences, parseField, parseGrid, setPath } = await at("config_form.js");
const { eigenvalueItems, topEigenvalues } = await at("pick.js");
const { axes, cells, lossByRate } = await at("grid.js");
const { sparkPoints } = await at("spark.js");
const { runItems } = await at("run_items.js");

test("numbers are short, and what is no number is named", () => {
  const shown = [0, 412, 1234567, 0.00012345, 0.5, "NaN", Infinity, "-Infinity", null, 2.5e9].map((v) => number(v));
  assert.deepEqual(shown, ["0", "412", "1.23e+6", "1.23e-4", "0.5", "NaN", "+Inf", "−Inf", "–", "2.5e+9"]);
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
  const config = {};
  setPath(config, "task.name", "digits");
  setPath(config, "model.reparameterization.name", "exp");
  setPath(config, "model.d_state", 64);
  const defaults = { task: { name: "x" }, model: { d_state: 64, reparameterization: { name: "best" } } };
  assert.deepEqual(differences(config, defaults), { task: { name: "digits" }, model: { reparameterization: { name: "exp" } } });
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

test("a cell of a sweep counts its lost runs and never averages them away", () => {
  const grid = { "optimizer.lr": [0.1, 1], "model.reparameterization.name": ["best", "direct"], "train.seed": [0, 1] };
  const runs = [run(1, "best", 0.1, "finished", 0.5), run(2, "best", 0.1, "finished", 0.7), run(3, "direct", 1, "diverged", "NaN"),
    run(4, "direct", 1, "finished", 2), run(5, "best", 1, "running")];
  assert.deepEqual(axes(grid), ["model.reparameterization.name", "optimizer.lr"]);
  const [best, direct] = cells({ grid, runs });
  assert.ok(Math.abs(best[0].loss - 0.6) < 1e-12);
  assert.deepEqual([best[0].finite, best[0].total, best[0].status], [2, 2, "finished"]);
  assert.deepEqual([best[1].loss, best[1].status], [null, "running"]);
  assert.deepEqual([direct[1].finite, direct[1].total, direct[1].status, direct[1].loss], [1, 2, "diverged", 2]);
  const data = lossByRate({ grid, runs });
  assert.ok(Number.isNaN(data["sweep/direct"].last[1]));
  assert.equal(data["sweep/direct"].nonfinite[1], 1);
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
