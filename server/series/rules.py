"""Judges the alert rules of a run where its values arrive, and keeps how far each rule has come in the run's row.

The recorder of our trainer judges the rules about the scalars that it records (stablessm_core.telemetry.rules). This file judges
the rules of reported runs, and rules about free metrics. The state of each rule is in `runs.rule_states`, as [since, held, fired,
newest], so that any server process can continue from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.models import Run, SeriesRow
from stablessm_core.telemetry.blocks import PackedBlock
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.rules import Rule, RuleState
from stablessm_core.telemetry.series import LAYER_GROUPS

MOST = 1000  # alerts of one rule that the points of a message may raise
Points = Mapping[str, tuple[np.ndarray, np.ndarray]]  # steps and values (n,) each of each scalar, in ascending steps


def rules_of(run: Run) -> list[Rule]:
    """The alert rules of a run: of its configuration, or those that its program reported."""
    given: Any = run.rules
    if given is None:
        alerts = run.config.get("alerts")
        given = alerts.get("rules") if isinstance(alerts, dict) else None
    return [Rule(rule["name"], rule["condition"], rule.get("steps", 1)) for rule in given or ()]


def judge_rules(run: Run, points: Points) -> list[Alert]:
    """The alerts of the run's rules that these points raise, by step. The caller stores them in the same transaction."""
    rules = rules_of(run)
    if not any(rule.name in points for rule in rules):
        return []
    states = _states(run, rules)
    found: list[Alert] = []
    for i, rule in enumerate(rules):
        if rule.name in points:
            states[i], alerts = rule.judge(states[i], *points[rule.name], most=MOST)
            found += alerts
    run.rule_states = _json(states)
    return sorted(found, key=lambda alert: alert.step)


def block_alerts(session: Session, run: Run, blocks: Sequence[PackedBlock]) -> list[Alert]:
    """The alerts of a reported run's rules that these raw blocks raise. The caller has locked the run's row, and stores the
    alerts with the blocks."""
    raw = [block for block in blocks if block.level == 0 and not block.group.startswith(LAYER_GROUPS)]
    names = {rule.name for rule in rules_of(run)} if run.rules else set()
    if not raw or not names:
        return []
    scalars = select(SeriesRow.name, SeriesRow.group_name, SeriesRow.column_offset).where(
        SeriesRow.run_id == run.id, SeriesRow.name.in_(names), SeriesRow.width == 1, SeriesRow.derived.is_(False)
    )
    points: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for row in session.execute(scalars):
        own = sorted((block for block in raw if block.group == row.group_name), key=lambda block: block.first_step)
        own = [block for block in own if row.column_offset < len(block.values)]
        if own:
            steps = [block.first_step + block.stride * np.arange(block.point_count, dtype=np.int64) for block in own]
            points[row.name] = np.concatenate(steps), np.concatenate([block.values[row.column_offset] for block in own])
    return judge_rules(run, points)


def forget_steps(run: Run, from_step: int) -> None:
    """Set the rules back to the steps before `from_step`, whose later steps are deleted."""
    if run.rule_states:
        run.rule_states = _json([state.before(from_step) for state in _states(run, rules_of(run))])


def _states(run: Run, rules: Sequence[Rule]) -> list[RuleState]:
    stored = [RuleState(since, held, bool(fired), newest) for since, held, fired, newest in run.rule_states or ()]
    return stored if len(stored) == len(rules) else [RuleState()] * len(rules)


def _json(states: Sequence[RuleState]) -> list[Any]:
    return [list(astuple(state)) for state in states]
