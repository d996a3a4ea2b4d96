// The comparison's address gives the view again, and its lines lose no extreme.
import assert from "node:assert/strict";
import { test } from "node:test";

const { addressOf, lineOf, rangeOf, tickedOf } = await import(`${process.env.STATIC}/compare/model.js`);
const KEYS = ["1", "2", "3"];
const view = { show: "runs", x: "step", y: "log", ticked: new Set(KEYS), range: null };

test("the address stores settings that differ from the defaults, and restores them", () => {
  const kept = "?runs=1,2,3";
  assert.equal(addressOf(kept, view, KEYS, "runs"), kept);
  const zoomed = addressOf(
    kept,
    { ...view, y: "linear", range: [12.3456789, 1e6], ticked: new Set(["1", "3"]) },
    KEYS,
    "runs",
  );
  assert.equal(zoomed, "?runs=1,2,3&y=linear&from=12.3457&to=1000000&off=2");
  assert.deepEqual(rangeOf(zoomed), [12.3457, 1e6]);
  assert.deepEqual([...tickedOf(zoomed, "runs", KEYS)], ["1", "3"]);
  assert.equal(addressOf(zoomed, view, KEYS, "runs"), kept);
});

test("an invalid range selects the whole axis", () => {
  for (const search of ["", "?from=3", "?from=5&to=5", "?from=9&to=2", "?from=a&to=b", "?from=-Infinity&to=3"])
    assert.equal(rangeOf(search), null);
  assert.deepEqual(rangeOf("?from=-0.5&to=3"), [-0.5, 3]);
});

test("a thinned line keeps the smallest and the largest value", () => {
  const step = Float64Array.from({ length: 400 }, (_, i) => i);
  const min = Float32Array.from(step, (i) => (i === 77 ? -5 : 1));
  const max = Float32Array.from(step, (i) => (i === 301 ? 9 : i === 10 ? NaN : 2));
  const run = { key: "1", perStep: { step: 1, tokens: 4, seconds: null } };
  for (const [lines, points] of [
    [2, 800],
    [200, 400],
  ]) {
    const line = lineOf(run, { step, min, max }, "tokens", false, lines);
    assert.equal(line.y.length, points);
    assert.deepEqual(
      [Math.min(...line.y.filter(Number.isFinite)), Math.max(...line.y.filter(Number.isFinite))],
      [-5, 9],
    );
    assert.equal(line.x.at(-2), 4 * (lines === 2 ? 399 : 398));
  }
  assert.equal(lineOf(run, { step, min, max }, "seconds", false, 2), null);
});
