"""The pages of the example programs that watch a Mamba, in a real Chromium: the loss, the eigenvalues, and the end."""

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
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("program", ["watch_mamba.py", "watch_trainer.py", "watch_lightning.py"])
def test_the_page_draws_the_loss_and_the_eigenvalues(
    program: str, page: Any, installation: Installation, data_root: Path, tmp_path: Path
) -> None:
    token = (installation.data_dir / "token").read_text().strip()
    more = {"STABLESSM_URL": installation.url, "STABLESSM_TOKEN": token, "STABLESSM_DATA": str(data_root)}
    env = os.environ | more | {"PYTHONPATH": str(EXAMPLES.parent)}
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / program)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    page.goto(done.stdout.split()[-1])
    all_drawn(page)
    if program != "watch_trainer.py":  # the Trainer tells its loss every five steps only, so it is a metric
        assert trace(page, "loss", "train")["x"][-1] == 60
    becomes(page, f"{CHARTS}.some((e) => e.dataset.chart === 'eigenvalue' && e.data.length > 0)")
    text = page.locator("main").inner_text()
    assert "mixer.A_log" in text
    assert "at gate zero" in text
    assert "finished" in text.lower()
