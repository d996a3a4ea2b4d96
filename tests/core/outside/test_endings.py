"""However a process ends, each step that was completed 0.3 s before is in the file once, and the status is right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import stablessm
from tests.core.outside.reading import Recorded, read
from tests.core.outside.stand_ins import model_of

# 30 quick steps, a pause, then the end that argument 2 names
PROGRAM = """
import atexit, os, signal, sys, time
import torch
import stablessm
from tests.core.outside.stand_ins import Mamba2Mixer

model = Mamba2Mixer(4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = stablessm.watch(model, optimizer, mode="offline", dir=sys.argv[1])
for p in model.parameters():
    p.grad = torch.ones_like(p)
def train():
    for i in range(30):
        run.loss(1.0)
        optimizer.step()
        run.log({"a": i})
    time.sleep(0.3)
    print("ready", flush=True)
    if sys.argv[2] == "exception": raise ValueError("the loop broke")
    if sys.argv[2] == "exit": sys.exit(3)
    if sys.argv[2] == "_exit": os._exit(0)
    if sys.argv[2] == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "fork":
        before = time.monotonic()
        if os.fork() == 0:
            run.loss(2.0); optimizer.step(); run.log({"a": 99}); run.alert("child"); run.finish()
            atexit._run_exitfuncs()
            print("child", time.monotonic() - before, flush=True)
            os._exit(5)  # an ordinary exit would unload torch, which takes seconds
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 5
        loader = iter(torch.utils.data.DataLoader(range(100), num_workers=2))
        next(loader)
        before = time.monotonic()
        del loader  # ends its workers
        print("workers", time.monotonic() - before, flush=True)
    if sys.argv[2] in ("sigterm", "ctrl-c"):
        time.sleep(60)
if sys.argv[3] == "with":
    with run: train()
else:
    train()
"""


def end(tmp_path: Path, how: str, style: str) -> tuple[Recorded, int, str]:
    """The run, the exit code, and what the program printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), how, style], env=environment, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    if how in ("sigterm", "ctrl-c"):
        program.send_signal(signal.SIGTERM if how == "sigterm" else signal.SIGINT)
    printed = program.stdout.read()
    return read(tmp_path), program.wait(), printed


ENDS = {
    "exception": ("failed", "ValueError: the loop broke, after step 30; 0 steps missing", 1),
    "exit": ("failed", "exit code 3 after step 30; 0 steps missing", 3),
    "ctrl-c": ("cancelled", "Ctrl-C after step 30; 0 steps missing", -signal.SIGINT),
    "sigterm": ("cancelled", "SIGTERM after step 30; 0 steps missing", 128 + signal.SIGTERM),
    "normal": ("finished", "", 0),
    "_exit": (None, None, 0),
    "kill": (None, None, -signal.SIGKILL),
}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "style"), [(how, style) for how in ENDS for style in ("with", "plain")])
def test_every_step_is_in_the_file_once_and_the_status_is_right(how: str, style: str, tmp_path: Path) -> None:
    found, code, _ = end(tmp_path, how, style)
    status, reason, expected = ENDS[how]
    assert found.sink.series("train/loss")[0].tolist() == list(range(1, 31))
    assert found.sink.series("ssm/0/weight")[0].tolist() == list(range(1, 31))
    assert found.metrics["a"] == [(i + 1, i) for i in range(30)]
    assert [(e.status, e.reason) for e in found.ends] == ([] if status is None else [(status, reason)])
    assert code == expected


@pytest.mark.slow
def test_forked_children_and_workers_write_nothing_and_end_at_once(tmp_path: Path) -> None:
    found, code, printed = end(tmp_path, "fork", "with")
    child, workers = printed.splitlines()
    assert float(child.split()[1]) < 1
    assert float(workers.split()[1]) < 1
    assert code == 0
    assert found.metrics["a"] == [(i + 1, i) for i in range(30)]
    assert found.sink.alerts == []
    assert [e.status for e in found.ends] == ["finished"]


def test_the_last_loss_that_a_program_only_logs_is_its_result(tmp_path: Path) -> None:
    model, optimizer = model_of(1)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for step in range(1, 4):
            optimizer.step()
            run.log({"train/loss": 1.0 / step, "other": 5})
    assert read(tmp_path).ends[0].result["train_loss"] == 1.0 / 3


def test_an_exception_that_cannot_be_shown_is_the_one_that_the_program_sees(tmp_path: Path) -> None:
    class Broken(ValueError):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def train() -> None:
        with stablessm.log_only(mode="offline", dir=tmp_path) as run:
            run.log({"a": 1})
            raise Broken

    with pytest.raises(Broken):
        train()
    assert [(e.status, e.reason) for e in read(tmp_path).ends] == [("failed", "Broken after step 1; 0 steps missing")]


def test_sys_exit_in_another_thread_is_not_the_end_of_the_program(tmp_path: Path) -> None:
    code = (
        "import sys, threading, stablessm; run = stablessm.log_only(mode='offline', dir=sys.argv[1]); run.log({'a': 1})\n"
        "thread = threading.Thread(target=lambda: sys.exit(3)); thread.start(); thread.join()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, stderr=subprocess.DEVNULL)
    assert [e.status for e in read(tmp_path).ends] == ["finished"]


LOOP = """
import sys, threading, stablessm
run = stablessm.log_only(mode="offline", dir=sys.argv[1])
for i in range(5): run.log({"a": i})
"""
TROUBLES = {
    "another hook": ("sys.excepthook = lambda *_: None\nraise ValueError('boom')", "failed", "ValueError: boom, after step 5"),
    "a thread that trains": (
        "def train():\n    run.log({'a': 9})\n    raise ValueError('boom')\n"
        "t = threading.Thread(target=train, name='trainer'); t.start(); t.join()",
        "failed", "in the thread trainer: ValueError: boom, after step 6",
    ),
    "another thread": ("t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", "finished", ""),
    "a thread, before more values": (
        "def train():\n    run.log({'a': 9})\n    raise ValueError('boom')\n"
        "t = threading.Thread(target=train); t.start(); t.join()\nrun.log({'a': 10})",
        "finished", "",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_exception_after_the_last_value_is_the_cause(tmp_path: Path, trouble: str) -> None:
    code, status, reason = TROUBLES[trouble]
    subprocess.run([sys.executable, "-c", LOOP + code, str(tmp_path)], stderr=subprocess.DEVNULL, check=False)
    (end,) = read(tmp_path).ends
    assert end.status == status
    assert end.reason.removesuffix("; 0 steps missing") == reason


PROMPTS = {
    "an exception is the last": ("1 / 0\n", "failed", "ZeroDivisionError: division by zero, after step 5"),
    "values follow the exception": ("1 / 0\nrun.log({'a': 1})\n", "finished", ""),
    "other lines follow the exception": (
        "1 / 0\nprint(run.step)\n",
        "failed",
        "ZeroDivisionError: division by zero, after step 5",
    ),
    "no exception": ("print(run.step)\n", "finished", ""),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS)
def test_an_exception_at_a_prompt_ends_a_run_that_reports_nothing_after_it(tmp_path: Path, prompt: str) -> None:
    typed, status, reason = PROMPTS[prompt]
    (tmp_path / "loop.py").write_text(LOOP)
    command = [sys.executable, "-i", str(tmp_path / "loop.py"), str(tmp_path)]
    subprocess.run(command, input=typed, text=True, capture_output=True, check=False)
    (end,) = read(tmp_path).ends
    assert (end.status, end.reason.removesuffix("; 0 steps missing")) == (status, reason)


# a module with the part of IPython's interface that notebooks use: a shell that calls functions after each cell
SHELL = """
import sys, types
class Result: error_before_exec = error_in_exec = None
class Events:
    def __init__(self): self.after = []
    def register(self, name, function): assert name == "post_run_cell"; self.after.append(function)
    def unregister(self, name, function): self.after.remove(function)
class Shell:
    events, space = Events(), {}
    def run_cell(self, code):
        result = Result()
        try: exec(code, self.space)
        except BaseException as error: result.error_in_exec = error
        for function in list(self.events.after): function(result)
shell = Shell()
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
"""
CELLS = {
    "boom": (["for i in range(3):\n    run.log({'a': i})\nraise RuntimeError('boom')"],
             "failed", "in a cell of the notebook: RuntimeError: boom, after step 8"),
    "interrupted": (
        ["raise KeyboardInterrupt", "print(run.step)"],
        "cancelled",
        "in a cell of the notebook: Ctrl-C, after step 5",
    ),
    "goes on": (["raise RuntimeError('boom')", "run.log({'a': 1})"], "finished", ""),
    "ended by hand": (["raise RuntimeError('boom')", "run.finish()"], "finished", ""),
    "fine": (["run.log({'a': 1})"], "finished", ""),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("cells", CELLS)
def test_an_exception_in_a_cell_ends_a_run_that_reports_nothing_after_it(tmp_path: Path, cells: str) -> None:
    codes, status, reason = CELLS[cells]
    code = SHELL + "\n".join(f"shell.run_cell({one!r})" for one in [LOOP, *codes]) + "\nassert len(shell.events.after) <= 1"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.DEVNULL, check=True)
    (end,) = read(tmp_path).ends
    assert (end.status, end.reason.removesuffix("; 0 steps missing")) == (status, reason)


FORK = """
import multiprocessing, sys, stablessm
run = stablessm.log_only(mode="offline", dir=sys.argv[1])
run.log({"a": 1})
def child():
    run.log({"a": 2})
    run.log({"b": 3})
    run.alert("child")
context = multiprocessing.get_context("fork")
for _ in range(3):
    process = context.Process(target=child)
    process.start()
    process.join()
run.finish()
"""


@pytest.mark.slow
def test_what_forked_children_report_is_counted_and_said(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], capture_output=True, text=True, check=True)
    found = read(tmp_path)
    assert done.stderr.count("this process was forked from the one that opened the run") == 3  # once in each child
    assert done.stderr.count("9 values that forked children reported are not recorded") == 1
    assert found.ends[0].reason == "finished after step 1; 9 values of forked children are not recorded"
    assert found.metrics["a"] == [(1, 1)]
