import assert from "node:assert/strict";
import test from "node:test";

const at = (name) => import(`${process.env.STATIC}/${name}`);
const { SeriesStore } = await at("run/store.js");
const { buckets, decode, encode } = await at("lib/typed.js");

const series = (steps, values, width = 1) =>
  buckets({ width, step: encode(Float64Array.from(steps)), value: encode(Float32Array.from(values)) });
const count = (n, from = 1) => Array.from({ length: n }, (_, i) => i + from);

test("typed arrays keep NaN, infinities and negative zero", () => {
  const there = Float32Array.of(1.5, NaN, Infinity, -Infinity, -0);
  const back = decode(encode(there));
  assert.deepEqual([...back].map(String), ["1.5", "NaN", "Infinity", "-Infinity", "0"]);
  assert.ok(Object.is(back[4], -0));
  assert.throws(() => decode({ dtype: "f2", bdata: "" }), TypeError);
});

test("raw values become buckets of one step that count non-finite values", () => {
  const b = series([1, 2], [1, NaN, Infinity, 4], 2);
  assert.deepEqual([...b.nonfinite], [0, 1, 1, 0]);
  assert.deepEqual([...b.max].map(String), ["1", "NaN", "NaN", "4"]);
});

test("points that are already stored are dropped, so a replay changes nothing", () => {
  const store = new SeriesStore(1);
  assert.equal(store.append(series([1, 2, 3], [1, 2, 3])), 3);
  assert.equal(store.append(series([2, 3, 4], [9, 9, 4])), 1);
  assert.deepEqual([...store.data.last], [1, 2, 3, 4]);
});

test("merging keeps every extreme and every non-finite value", () => {
  const store = new SeriesStore(2, 100);
  const n = 5000;
  for (let first = 1; first <= n; first += 50) {
    const values = count(50, first).flatMap((s) => [s === 1234 ? 1e9 : s, s === 777 ? NaN : s === 4321 ? -5 : 1]);
    store.append(series(count(50, first), values, 2));
    assert.ok(store.points <= 100);
  }
  const { max, min, nonfinite, step, last } = store.data;
  const column = (part, c) => [...part].filter((_, i) => i % 2 === c);
  assert.equal(Math.max(...column(max, 0)), 1e9);
  assert.equal(Math.min(...column(min, 1)), -5);
  assert.equal(
    column(nonfinite, 1).reduce((a, b) => a + b),
    1,
  );
  assert.equal(last[last.length - 2], n);
  assert.equal(step[0], 1);
  assert.ok([...step].every((s, i) => i === 0 || s > step[i - 1]));
});

test("loaded buckets accept new steps without counting their last step twice", () => {
  const store = new SeriesStore(1, 8);
  const part = (...v) => encode(Float32Array.from(v));
  const loaded = {
    step: encode(Float64Array.of(1, 11)),
    min: part(0, 1),
    max: part(5, 6),
    last: part(3, 4),
    nonfinite: part(0, 2),
  };
  store.load(buckets(loaded), 20);
  assert.equal(store.append(series([20], [100])), 0);
  assert.equal(store.append(series([21], [7])), 1);
  assert.deepEqual([...store.data.step], [1, 11, 21]);
  assert.deepEqual([...store.data.max], [5, 6, 7]);
});

test("the store removes steps exactly, or reports that it cannot", () => {
  const store = new SeriesStore(1, 100);
  store.append(series(count(50), count(50)));
  assert.equal(store.truncate(31), true);
  assert.deepEqual([store.points, store.lastStep], [30, 30]);
  store.append(series([31], [310]));
  assert.equal(store.data.last[30], 310);
  store.append(series(count(300, 32), count(300, 32)));
  assert.ok(store.span > 1);
  assert.equal(store.truncate(store.data.step[5] + 1), false);
});
