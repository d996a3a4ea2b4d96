"""Every layer can be taken apart: the instrumented step computes the run's loss, and its scans tell the eigenvalue."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from stablessm_core.autopsy import places
from stablessm_core.autopsy.bench import build_bench
from stablessm_core.autopsy.instruments import Instruments
from stablessm_core.autopsy.repeat import compiled_norms, repeat, unfused_model
from stablessm_core.spec.layers import LAYERS
from stablessm_core.watch.watchable import watched_records
from tests.core.autopsy.runs import NOWHERE, config_of

pytestmark = [pytest.mark.slow]

BY_SCAN = ("stable_ssm", "s5", "lru", "rwkv4", "hgrn", "mamba", "rg_lru", "min_gru", "hyena")  # layers that scan their states


def small(layer: str, **changes: Any) -> Any:
    model = {"layer": layer, "d_model": 16, "n_layers": 2, "dropout": 0.1}
    return config_of({"model": model, "task.length": 12, "optimizer.lr": 0.01} | changes)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_instrumented_step_computes_the_loss_of_the_run_also_in_float64(layer: str) -> None:
    bench = build_bench(small(layer), NOWHERE, {})
    bench.train(3)
    before = bench.state()
    (row,) = bench.train(4)
    narrow, wide = repeat(bench, before), repeat(bench, before, dtype=torch.float64)
    assert narrow.loss == pytest.approx(float(row.loss), rel=1e-4)
    assert wide.loss == pytest.approx(float(row.loss), rel=1e-4)
    assert (narrow.first, narrow.finite, wide.finite, wide.narrow) == (None, True, True, [])
    assert [m.module for m in narrow.modules] == [m.module for m in wide.modules]
    assert all(m.largest > 0 and m.nonfinite == 0 for m in narrow.modules)


class LastScan(Instruments):
    """Keeps the results of scans."""

    scans: list[tuple[str, int, Tensor]]

    def _result_of(self, name: str, given: Tensor, made: Tensor) -> None:
        self.scans.append((name, given.dim(), made.detach()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if "scan_states" in str(func):
            self._result_of(self._module(), args[0], made)
        return made


@pytest.mark.parametrize("layer", BY_SCAN)
def test_the_column_of_a_scan_is_translated_to_its_eigenvalue(layer: str) -> None:
    bench = build_bench(small(layer), NOWHERE, {})
    model = unfused_model(bench)
    x, _ = bench.batches(1)
    seen = LastScan()
    seen.scans = []
    with seen, seen.watch_modules(model):
        model(x)
    for watched in filter(lambda r: r.first, watched_records(model)):
        state = watched.module.last_state
        assert state is not None
        largest = torch.zeros_like(state.abs())
        for module, dimensions, h in seen.scans:
            if module.startswith(f"blocks.{watched.layer}."):
                eigenvalues = [
                    places._scanned(column, watched.record.weight, varying=dimensions == 3) for column in range(h.shape[2])
                ]
                largest[:, eigenvalues] = torch.maximum(largest[:, eigenvalues], h[:, -1].abs())
        assert largest.sum() > 0
        assert torch.equal(largest, state.abs())


@pytest.mark.parametrize("layer", ["stable_ssm", "lru"])  # a network that is one node, and a block whose second half is one
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [1e18, 3e19, 1e20, 1e21, 1e23])
def test_the_instruments_overflow_where_the_kernels_of_the_run_do(layer: str, scale: float, precision: str) -> None:
    bench = build_bench(
        small(layer, model={"layer": layer, "d_model": 16}, train={"precision": precision, "batch_size": 16, "device": "cpu"}),
        NOWHERE,
        {},
    )
    with torch.no_grad():
        bench.model.encoder.weight.mul_(scale)
    assert bool(compiled_norms(bench, bench.batches(1)[0])) == (precision == "float32")
    before = bench.state()
    (row,) = bench.train(1)
    found = repeat(bench, before)
    assert math.isfinite(found.loss) == math.isfinite(row.loss)
    assert (found.first is None) == all(math.isfinite(number) for number in (row.loss, row.grad_norm))
