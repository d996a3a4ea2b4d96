// The search part of the form for a new run.

import assert from "node:assert/strict";
import { test } from "node:test";

const { parseSpace } = await import(`${process.env.STATIC}/new/search.js`);

test("each line becomes a distribution", () => {
  const text = `
    optimizer.lr log 1e-4 0.1
    optimizer.weight_decay uniform 0, 0.1
    model.d_state integer 16..64
    model.reparameterization.name choice exp, best
    train.seed choice 1, 2`;
  assert.deepEqual(parseSpace(text), {
    "optimizer.lr": { distribution: "log_uniform", low: 1e-4, high: 0.1 },
    "optimizer.weight_decay": { distribution: "uniform", low: 0, high: 0.1 },
    "model.d_state": { distribution: "integer", low: 16, high: 64 },
    "model.reparameterization.name": { distribution: "choice", values: ["exp", "best"] },
    "train.seed": { distribution: "choice", values: [1, 2] },
  });
});

test("a line that is not understood is passed on for the server to refuse", () => {
  assert.deepEqual(parseSpace("optimizer.lr normal x"), {
    "optimizer.lr": { distribution: "normal", low: "x", high: undefined },
  });
  assert.deepEqual(parseSpace(" \n"), {});
});
