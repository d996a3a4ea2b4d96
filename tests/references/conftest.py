"""Ignores the warnings of third-party libraries. Where these libraries are required, a missing library is a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore")


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    import torch

    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """With REQUIRE_REFERENCES=1, which `make references` sets, a file that would be skipped fails."""
    report = yield
    if report.skipped and os.environ.get("REQUIRE_REFERENCES") == "1":
        report.outcome = "failed"
    return report
