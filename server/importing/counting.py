"""Counts what an import has read, stored and left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from server.importing.found_run import FoundRun

SHOWN = 5  # files of no known kind that are named


@dataclass
class Totals:
    """read, refused: files. runs, values: that the server has now. passed_over: files of no known kind."""

    read: int = 0
    refused: int = 0
    runs: int = 0
    values: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    passed_over: list[Path] = field(default_factory=list)

    def add(self, run: FoundRun, values: int) -> None:
        """Count a run that is stored."""
        self.runs += 1
        self.values += values
        self.left_out += run.left_out
        self.changed += run.changed

    def sentences(self) -> list[str]:
        """The final count, a line for each kind."""
        refused = f", {self.refused:,} refused" if self.refused else ""
        found = [f"{self.read:,} files read{refused}; {self.runs:,} runs with {self.values:,} values"]
        found += [f"  left out: {kind} ({count:,})" for kind, count in sorted(self.left_out.items())]
        found += [f"  changed: {kind} ({count:,})" for kind, count in sorted(self.changed.items())]
        if self.passed_over:
            names = ", ".join(path.name for path in self.passed_over[:SHOWN])
            more = ", ..." if len(self.passed_over) > SHOWN else ""
            found.append(f"  passed over: files of no known kind ({len(self.passed_over):,}): {names}{more}")
        return found
