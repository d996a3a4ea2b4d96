"""The ring delivers every row once and in order, whenever it wraps around; on a GPU it never makes the host wait."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stablessm_core.watch.ring import Ring


@pytest.mark.parametrize("takes", [[8] * 20, [1, 2, 3, 5, 7, 8, 4] * 9, [3] * 50])
def test_the_ring_returns_every_row_once_and_in_order_wherever_it_wraps_around(takes: list[int]) -> None:
    ring, copies, step = Ring(3, 8, torch.device("cpu")), [], 0
    for count in takes:
        for _ in range(count):
            ring.write(torch.full((3,), float(step)))
            ring.advance()
            step += 1
        assert ring.rows == count
        copies.append(ring.take())
        assert ring.rows == 0
    got = np.concatenate([copy.wait() for copy in copies])
    assert np.array_equal(got, np.repeat(np.arange(step, dtype=np.float32)[:, None], 3, axis=1))


def test_later_writes_do_not_change_rows_that_were_already_taken() -> None:
    ring = Ring(1, 4, torch.device("cpu"))
    for value in range(4):
        ring.write(torch.full((1,), float(value)))
        ring.advance()
    first = ring.take()
    for _ in range(4):
        for value in (9.0, 9.0, 9.0, 9.0):
            ring.write(torch.full((1,), value))
            ring.advance()
        ring.take()
    assert first.wait()[:, 0].tolist() == [0, 1, 2, 3]


def test_a_full_ring_refuses_another_row() -> None:
    ring = Ring(1, 2, torch.device("cpu"))
    ring.advance()
    ring.advance()
    with pytest.raises(RuntimeError, match="at most 2 fit"):
        ring.advance()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_rows_reach_the_host_without_a_synchronization_of_the_device() -> None:
    ring, copies, step = Ring(700, 64, torch.device("cuda")), [], 0
    rows = torch.randn(1000, 700, device="cuda")
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for count in [64, 1, 63, 40, 64, 64, 17, 64, 64, 64]:
            for _ in range(count):
                ring.write(rows[step])
                ring.advance()
                step += 1
            copies.append(ring.take())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert np.array_equal(np.concatenate([copy.wait() for copy in copies]), rows[:step].cpu().numpy())


def test_a_copy_uses_the_memory_of_a_released_copy() -> None:
    ring = Ring(2, 4, torch.device("cpu"))
    addresses = []
    for step in range(6):
        for _ in range(1 + step % 3):
            ring.write(torch.full((2,), float(step)))
            ring.advance()
        copy = ring.take()
        rows = copy.wait()
        assert rows.tolist() == [[step, step]] * (1 + step % 3)
        addresses.append(rows.ctypes.data)
        copy.release()
    assert len(set(addresses)) == 1
    kept = ring.take()
    assert kept.wait().shape == (0, 2)


def test_discarded_rows_are_in_no_copy() -> None:
    ring = Ring(1, 4, torch.device("cpu"))
    for value in range(3):
        ring.write(torch.full((1,), float(value)))
        ring.advance()
    ring.discard()
    ring.write(torch.full((1,), 9.0))
    ring.advance()
    assert ring.take().wait().tolist() == [[9.0]]
