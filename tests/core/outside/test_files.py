"""Files of runs need no call that a system may lack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stablessm_core.report import files
from stablessm_core.report.outbox import Outbox, read_run_file
from tests.core.outside.reading import read

# what Windows lacks
BARE = """
import os, sys, torch
for name in ("pread", "pwrite", "register_at_fork", "fork", "set_blocking"): delattr(os, name)
sys.modules["fcntl"] = None
import stablessm
from tests.core.outside.stand_ins import model_of
model, optimizer = model_of(1)
run = stablessm.watch(model, optimizer, mode="offline", dir=sys.argv[1])
for i in range(20):
    run.loss(1.0)
    optimizer.step()
run.log({"a": 1})
run.finish()
"""


@pytest.mark.slow
def test_a_run_is_recorded_on_a_system_without_positional_reads_locks_and_forks(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BARE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "Error" not in done.stderr
    found = read(tmp_path)
    assert found.sink.series("train/loss")[0].tolist() == list(range(1, 21))
    assert found.ends[0].status == "finished"


@pytest.mark.parametrize("replaces", [True, False])
def test_a_new_opening_keeps_the_frames_also_where_no_open_file_can_be_replaced(
    tmp_path: Path, replaces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CAN_REPLACE", replaces)
    path = tmp_path / "run.ssmr"
    box = Outbox(path, {"id": "x", "name": "a long name " * 5}, print)
    box.append(b"first")
    for name in ("short", "a far longer name " * 9):
        box.reopen({"id": "x", "name": name})
        box.append(name.encode())
        assert read_run_file(path).opening["name"] == name
    box.close(delete=False)
    assert list(read_run_file(path).records()) == [b"first", b"short", ("a far longer name " * 9).encode()]


def test_a_file_is_locked_until_its_writer_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    files.lock(descriptor)
    assert files.is_locked(path)
    os.close(descriptor)
    assert not files.is_locked(path)
