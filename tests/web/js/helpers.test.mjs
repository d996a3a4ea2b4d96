import assert from "node:assert/strict";
import test from "node:test";

const at = (name) => import(`${process.env.STATIC}/${name}`);
const { ago, duration, escapeMarkup, eta, number, parseIndices } = await at("lib/format.js");
const { differences, parseField, parseGrid, sectionOf, sentOf, setPath } = await at("new/config_form.js");
const { eigenvalueItems, topEigenvalues } = await at("lib/pick.js");
const { sparkPoints } = await at("list/spark.js");
const { statusText } = await at("lib/status.js");

test("numbers are formatted briefly, and NaN, infinities and missing values are named", () => {
  const shown = [0, 412, 1234567, 0.00012345, 0.5, "NaN", Infinity, "-Infinity", null, 2.5e9, 1e6, 1.05e-5].map((v) =>
    number(v),
  );
  assert.deepEqual(shown, [
    "0",
    "412",
    "1,234,567",
    "1.23e-4",
    "0.5",
    "NaN",
    "+Inf",
    "−Inf",
    "–",
    "2.5e9",
    "1,000,000",
    "1.05e-5",
  ]);
});

test("durations, remaining times and ages are formatted in readable units", () => {
  assert.deepEqual(
    [0.2, 59, 61, 3700, 90000, null, NaN].map((s) => duration(s)),
    ["< 1 s", "59 s", "1 min 01 s", "1 h 01 min", "1 d 1 h", "–", "–"],
  );
  assert.equal(eta(400, 1000, 100), 6);
  assert.equal(eta(400, 1000, 0), null);
  assert.equal(eta(1200, 1000, 5), null);
  assert.equal(ago(1000, 1002), "just now");
  assert.equal(ago(1000, 1130), "2 min ago");
  assert.equal(ago(1000 + 30 * 86_400, 1000), "in 30 d");
  assert.equal(ago(1003, 1000), "just now");
});

test("the text of a badge names an evaluation that is not finite, a loss above its start and eigenvalues outside", () => {
  const unstable = { eigenvalues: 3, of: 16 };
  const said = (status, result, worse) => statusText({ status, unstable: null, result }, worse);
  assert.equal(said("finished", { eval_loss: "NaN" }), "finished · evaluation NaN");
  assert.equal(said("finished", { eval_loss: 0.5 }, true), "finished · loss above its start");
  assert.equal(said("finished", null), "finished");
  assert.equal(
    statusText({ status: "failed", unstable, result: { eval_loss: "Infinity" } }),
    "failed · evaluation +Inf · 3 of 16 outside",
  );
  assert.equal(statusText({ status: "diverged", unstable, result: { eval_loss: "NaN" } }), "diverged");
});

test("markup in names is escaped", () => {
  assert.equal(escapeMarkup('<b onx="1">&'), '&lt;b onx="1">&amp;');
});

test("lists and ranges of eigenvalue indices are parsed", () => {
  assert.deepEqual(parseIndices("3, 17; 60-70 x -2 1e3", 64), [3, 17, 60, 61, 62, 63]);
  assert.deepEqual(parseIndices("0-999999999", 4), [0, 1, 2, 3]);
});

test("the form sends only changed fields, with the types that the API expects", () => {
  assert.equal(parseField("number", " 1e-3 "), 0.001);
  assert.equal(parseField("integer", "ten"), "ten");
  assert.deepEqual(parseField("pair", "0.5, 0.9"), [0.5, 0.9]);
  assert.deepEqual(parseField("tags", "a, b,,"), ["a", "b"]);
  assert.equal(parseField("number", ""), null);
  assert.deepEqual(parseGrid("direct, best"), ["direct", "best"]);
  assert.deepEqual(parseGrid("0.1,1e-3"), [0.1, 0.001]);
  assert.equal(parseGrid("  "), null);
  assert.deepEqual(parseGrid("true, null, 3, x"), [true, null, 3, "x"]);
  assert.deepEqual(parseGrid("[0.5, 0.9], [0.1, 0.9]"), [
    [0.5, 0.9],
    [0.1, 0.9],
  ]);
  const config = {};
  setPath(config, "task.name", "digits");
  setPath(config, "model.reparameterization.name", "exp");
  setPath(config, "model.d_state", 64);
  const defaults = { task: { name: "x" }, model: { d_state: 64, reparameterization: { name: "best" } } };
  assert.deepEqual(differences(config, defaults), {
    task: { name: "digits" },
    model: { reparameterization: { name: "exp" } },
  });
});

test("the form sends only the options of a layer that differ from its defaults", () => {
  const mamba = { name: "mamba", d_state: 16, expand: 2 };
  assert.equal(sectionOf({ ...mamba }, mamba), "mamba");
  assert.deepEqual(sectionOf({ ...mamba, d_state: 4 }, mamba), { name: "mamba", d_state: 4 });
  const hyena = { name: "hyena", inner: { name: "stable_ssm", d_state: null } };
  assert.equal(sectionOf({ name: "hyena", inner: { name: "stable_ssm" } }, hyena), "hyena");
  assert.deepEqual(sectionOf({ name: "hyena", inner: { name: "s4d", d_state: 64 } }, hyena), {
    name: "hyena",
    inner: { name: "s4d", d_state: 64 },
  });
  const defaults = {
    model: {
      layer: "stable_ssm",
      layers: null,
      d_model: 64,
      reparameterization: { name: "best", time: "discrete", b: 0.5 },
    },
  };
  const sent = (model) => sentOf({ model: { d_model: 64, layers: null, ...model } }, defaults, { mamba }).model;
  assert.equal(
    sent({ layer: { name: "stable_ssm" }, reparameterization: { name: "best", time: "discrete", b: 0.5 } }),
    undefined,
  );
  assert.deepEqual(sent({ layer: mamba, reparameterization: { name: "native", b: 0.5 } }), { layer: "mamba" });
  assert.deepEqual(sent({ layer: mamba, reparameterization: { name: "best", b: 0.03 } }), {
    layer: "mamba",
    reparameterization: { name: "best", b: 0.03 },
  });
  assert.deepEqual(sent({ layer: mamba, layers: ["s4d", "lru"], reparameterization: { name: "native", b: 0.5 } }), {
    layers: ["s4d", "lru"],
  });
});

test("the chart shows non-finite eigenvalues first, then the largest, and keeps their colours", () => {
  const data = {
    width: 4,
    max: Float32Array.of(1, 9, 3, NaN, 2, 1, 4, NaN),
    nonfinite: Float32Array.of(0, 0, 0, 1, 0, 0, 0, 1),
  };
  assert.deepEqual(topEigenvalues(data, 2), [1, 3]);
  assert.deepEqual(topEigenvalues(data, 9), [0, 1, 2, 3]);
  const first = eigenvalueItems([1, 3]);
  const later = eigenvalueItems([2, 3], first);
  assert.equal(later[1].color, first[1].color);
  assert.notEqual(later[0].color, later[1].color);
  assert.equal(eigenvalueItems(Array.from({ length: 99 }, (_, i) => i)).length, 24);
});

test("a sparkline marks the point where the loss becomes non-finite", () => {
  const { points, lost } = sparkPoints({ last: Float32Array.of(1, 0.1, 0.01, NaN) });
  assert.equal(points.split(" ").length, 3);
  assert.ok(lost > 90);
  assert.equal(sparkPoints({ last: Float32Array.of(1, 2) }).lost, null);
});
