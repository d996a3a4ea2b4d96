"""The page of a run that another program reported, in a real Chromium: it is drawn like the page of a run of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_dashboard import becomes, context, page, trace
from tests.browser.test_metrics import installation
from tests.browser.test_run_page import CHARTS, all_drawn
from tests.installation import Installation

__all__ = ["context", "installation", "page"]
pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "report_a_run.py"
WATCHED = """
import os, signal, sys, time
import torch
from torch import nn
import stablessm
from tests.core.outside.stand_ins import Mamba2Mixer, module

model = nn.Module()
model.layers = nn.ModuleList([Mamba2Mixer(5), module("Unheard", A_log=torch.rand(4), dt_bias=torch.rand(4))])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run = stablessm.watch(model, optimizer, project="hybrid", name=sys.argv[1], config={"lr": 1e-3})
print(run.url, flush=True)
for step in range(120):
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.1)
    run.loss(1 / (1 + step))
    run.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    run.log({"val/acc": step / 120, "val/loss": 1.0})
    time.sleep(0.01)
if sys.argv[1] == "killed":
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[1] == "open":
    sys.stdin.read()
raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB. Buy a GPU")
"""


def test_the_page_of_the_example_program_draws_its_loss_and_its_eigenvalues(page: Any, installation: Installation) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(EXAMPLE)], env=reporting(installation), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    page.goto(done.stdout.strip())
    all_drawn(page)
    loss = trace(page, "loss", "train")
    assert loss["x"][-1] == 400
    assert loss["y"][-1] < loss["y"][0] / 2
    becomes(page, f"{CHARTS}.some((e) => e.dataset.chart === 'eigenvalue' && e.data.length > 0)")
    text = page.locator("main").inner_text()
    assert "model.memory" in text
    assert "AdamW" not in text
    assert "Resume" not in text


def reporting(installation: Installation) -> dict[str, str]:
    """The environment of a program that reports to the installation."""
    token = (installation.data_dir / "token").read_text().strip()
    return os.environ | {"STABLESSM_URL": installation.url, "STABLESSM_TOKEN": token, "PYTHONPATH": str(ROOT)}


def watched(installation: Installation, folder: Path, name: str) -> subprocess.Popen[str]:
    """A program that watches a model of two layers."""
    command = [sys.executable, "-c", WATCHED, name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=reporting(installation), cwd=folder, text=True, **pipes)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("killed", "Cancelled: SIGTERM after step 120; 0 steps missing."),
        (
            "raised",
            "Failed: RuntimeError: CUDA out of memory. Tried to allocate 2 GiB. Buy a GPU, after step 120; 0 steps missing.",
        ),
    ],
)
def test_the_page_of_a_watched_run_says_how_it_ended_and_what_is_known_of_its_layers(
    page: Any, installation: Installation, tmp_path: Path, name: str, end: str
) -> None:
    output, errors = watched(installation, tmp_path, name).communicate(timeout=240)
    page.goto(output.strip())
    assert page.locator("[data-verdict-sentences]").inner_text().startswith(end), errors
    notes = page.locator("[data-part=notes]")
    assert "layers.0.A_log Mamba2Mixer at gate zero gradient: clipped" in " ".join(notes.inner_text().split())
    page.select_option("[name=layer]", "1")
    assert "layers.1.A_log Unheard by parameter name, unconfirmed" in " ".join(notes.inner_text().split())
    assert "by parameter name, unconfirmed" in page.locator("[data-part=composition]").text_content()
    page.locator("[data-metric-group=val]").scroll_into_view_if_needed()
    becomes(page, "document.querySelector('[data-metric=\"val/acc\"] .plot')?.data?.[0]?.x?.length > 0")  # open at once
    page.click("text=compare its runs")
    page.wait_for_url("**/compare?q=project*")
    assert name in page.locator("main").inner_text()


def test_a_running_run_without_a_total_shows_its_steps_its_speed_and_its_time(
    page: Any, installation: Installation, tmp_path: Path
) -> None:
    program = watched(installation, tmp_path, "open")
    try:
        assert program.stdout is not None
        page.goto(program.stdout.readline().strip())
        becomes(page, "document.querySelector('.how-far [data-live=step]').textContent === '120'")
        becomes(
            page, "/^[0-9,.]+ steps.s · for ([0-9]+ min )?[0-9]+ s$/.test(document.querySelector('[data-live=eta]').textContent)"
        )
        assert page.locator("progress[data-progress]").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    finally:
        program.communicate("", timeout=120)
