"""Tiles of one chain run concurrently and wait for each other in the interpreter, in any order that a device may choose.

Triton's interpreter runs one program after another. Here each program has its own thread. One thread runs at a time; before and
after every atomic operation, the next thread is drawn at random. Other programs see a stored value only after the program has
released it, which is the latest time at which a device may make it visible.
"""

from __future__ import annotations

import inspect
import os
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from stablessm_core.scan import configurations
from stablessm_core.scan.configurations import Tile
from tests.core.scan.cases import (
    TOLERANCE,
    PoisoningTorch,
    assert_matches_the_float64_loop,
    patch_the_language_once,
    problem,
    relative_error,
)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(
    not INTERPRETED, reason="programs are interleaved in Triton's interpreter, by test_scan_interpreter"
)

LENGTH = 4 * 17 + 1  # two groups of tiles, of which the second is shorter
KINDS = pytest.mark.parametrize(
    ("dtype", "lti", "h0"),
    [(torch.float32, True, False), (torch.float32, False, True), (torch.complex64, False, False)],
    ids=["lti", "ltv-h0", "complex"],
)


class Programs:
    """Runs the programs of a launch, at most `resident` at a time. `draw` chooses the index of the next waiting program."""

    def __init__(self, seed: int, resident: int, draw: Callable[[random.Random, int], int] = lambda _random, _waiting: 0) -> None:
        self.random, self.resident, self.draw = random.Random(seed), resident, draw
        self.launches = 0

    def run(self, programs: list[Callable[[], None]], interpreter: Any) -> None:
        self.launches += 1
        self.interpreter, waiting = interpreter, list(enumerate(programs))
        self.running: dict[int, threading.Thread] = {}
        self.turn = {number: threading.Semaphore(0) for number, _ in waiting}
        # Stores that are not yet released, by program.
        self.stores: dict[int, list[tuple[Any, ...]]] = {number: [] for number, _ in waiting}
        self.back, self.failures = threading.Semaphore(0), []
        while waiting or self.running:
            while waiting and len(self.running) < self.resident:
                number, program = waiting.pop(self.draw(self.random, len(waiting)))
                self.running[number] = threading.Thread(target=self._program, args=(number, program))
                self.running[number].start()
            self.now = self.random.choice(sorted(self.running))
            self.turn[self.now].release()
            self.back.acquire()
            if self.failures:
                raise self.failures[0]

    def _program(self, number: int, program: Callable[[], None]) -> None:
        self.turn[number].acquire()
        try:
            self.interpreter.grid_idx = (number, 0, 0)
            program()
        except Exception as error:  # noqa: BLE001 - raised again where the launch waits
            self.failures.append(error)
        del self.running[number]
        self.back.release()

    def others(self) -> None:
        """Let another program run. The stores that the current program has not released are hidden until it continues."""
        number = self.now
        mine = self.stores[number]
        for at, mask, _, before in reversed(mine):
            self.write(at, before, mask)
        self.back.release()
        self.turn[number].acquire()
        self.interpreter.grid_idx = (number, 0, 0)
        for i, (at, mask, value, _) in enumerate(mine):
            mine[i] = at, mask, value, self.read(at, mask, value)
            self.write(at, value, mask)

    def stored(self, at: Any, value: Any, mask: Any) -> None:
        self.stores[self.now].append((at, mask, value, self.read(at, mask, value)))
        self.write(at, value, mask)

    def released(self) -> None:
        self.stores[self.now].clear()

    @staticmethod
    def read(at: Any, mask: Any, like: Any) -> Any:
        from triton._C.libtriton import interpreter

        return interpreter.load(at, mask, like, like.dtype)

    @staticmethod
    def write(at: Any, value: Any, mask: Any) -> None:
        from triton._C.libtriton import interpreter

        interpreter.store(at, value, mask)


@pytest.fixture
def run_interleaved(monkeypatch: pytest.MonkeyPatch) -> Callable[[Programs], None]:
    """Returns a function that runs launches with given `Programs`. All tiles are small and concurrent; memory is poisoned."""
    from triton._C.libtriton import ir
    from triton.runtime import interpreter

    from stablessm_core.scan import triton_scan

    tile = Tile(2, 2, 2, 1, look_back=True)
    monkeypatch.setattr(configurations, "DEFAULT", dict.fromkeys(configurations.DEFAULT, (tile, tile)))
    monkeypatch.setattr(configurations, "FEW_PROGRAMS", 1 << 30)
    monkeypatch.setattr(configurations, "MANY_TILES", 2)
    # The poison is finite, so that the kernel cannot recognise a value that it reads too early.
    monkeypatch.setattr(triton_scan, "torch", PoisoningTorch(3.0))
    patch_the_language_once(monkeypatch)
    builder, make, patch = interpreter.interpreter_builder, interpreter.GridExecutor.__init__, interpreter._patch_lang
    atomic = builder.create_atomic_rmw

    def use(programs: Programs) -> None:
        def executor(self: Any, fn: Any, *args: Any, **options: Any) -> None:
            make(self, fn, *args, **options)
            collected: list[Callable[[], None]] = []

            def collect(**arguments: Any) -> None:
                collected.append(partial(fn, **arguments))
                if len(collected) == builder.grid_dim[0]:
                    programs.run(collected, builder)

            collect.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined]
            collect.kernel = fn  # type: ignore[attr-defined]
            self.fn = collect

        def atomic_rmw(operation: Any, ptr: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
            programs.others()
            if sem in (ir.MEM_SEMANTIC.RELEASE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE):
                programs.released()
            result = atomic(operation, ptr, value, mask, sem, scope)
            programs.others()
            return result

        def masked_store(ptrs: Any, value: Any, mask: Any, *_options: Any) -> None:
            programs.stored(ptrs.data, value.data, mask.data)

        monkeypatch.setattr(interpreter.GridExecutor, "__init__", executor)
        monkeypatch.setattr(interpreter, "_patch_lang", lambda fn: patch(getattr(fn, "kernel", fn)))
        monkeypatch.setattr(builder, "create_atomic_rmw", atomic_rmw)
        monkeypatch.setattr(builder, "create_masked_store", masked_store)

    return use


@KINDS
def test_any_interleaving_of_programs_started_in_order_ends_with_the_same_bits(dtype, lti, h0, run_interleaved) -> None:
    given = problem((1, LENGTH, 3), dtype, lti=lti, h0=h0)
    solved = []
    for seed, resident in enumerate((1, 4, 1000)):
        programs = Programs(seed, resident)
        run_interleaved(programs)
        solved.append(given.solve("triton"))
        assert programs.launches == 4, "expected launches: states, adjoints, and a repair check after each"
    for name, truth in given.solve("reference", torch.complex128 if dtype.is_complex else torch.float64).items():
        assert relative_error(solved[0][name], truth) <= TOLERANCE[dtype]
        assert all(torch.equal(other[name], solved[0][name]) for other in solved[1:])


@KINDS
def test_programs_started_in_reverse_order_end_and_their_chains_are_recomputed(
    dtype, lti, h0, run_interleaved, monkeypatch
) -> None:
    """The last tiles start first, and no other tile starts before they end. No known device does this."""
    monkeypatch.setattr("stablessm_core.scan.triton_scan.PATIENCE", 3)
    run_interleaved(Programs(0, 2, lambda _random, waiting: waiting - 1))
    assert_matches_the_float64_loop(problem((1, LENGTH, 3), dtype, lti=lti, h0=h0), "triton")


def test_a_mix_of_late_and_timely_tiles_matches_the_float64_loop(run_interleaved, monkeypatch) -> None:
    monkeypatch.setattr("stablessm_core.scan.triton_scan.PATIENCE", 1)
    for seed in range(3):
        run_interleaved(Programs(seed, 6, lambda random, waiting: random.randrange(min(waiting, 4))))
        assert_matches_the_float64_loop(problem((1, LENGTH, 3), torch.float32, lti=bool(seed % 2), h0=True), "triton")
