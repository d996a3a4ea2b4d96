"""Judges the groups of a comparison against one of them: which bears a larger learning rate, stays finite, reaches a lower loss?

The tests are those of stablessm_core.statistics: exact, and paired by seed. All runs of a seed count as one, and two runs are
compared only if all their settings except those of the groups are equal. The p-values of one question are adjusted by Holm's
method for all pairs of groups, because the reference is usually the group that did best. A run counts as finite by the rule of
server.compare.aggregation, with two exceptions: a run that failed or was cancelled says nothing about its group, and neither does
a run that died of float32's arithmetic alone (the verdict `arithmetic`, which rests on the same step in float64). Losses are
compared only where both runs trained: where the final loss is below that of a model that has learnt nothing, by MARGIN. If that
loss is unknown for the task, every finite run counts as trained.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy.orm import Session

from server.compare.aggregation import end_of, summary
from server.compare.comparison import Comparison, compare, default_groups
from server.compare.sweep_table import Column, Table, Value
from server.database.models import Run
from stablessm_core.spec.tasks import TASKS
from stablessm_core.statistics import Claim, Outcome, adjusted, bears_larger_rate, compare_maps, largest_rate_on_grid, outcome

Question = Literal["larger_rate", "finite", "lower_loss"]
RATE, SEED = "optimizer.lr", "train.seed"
MARGIN = 0.05  # share of the loss of a model that has learnt nothing
MAX_JUDGED = 20  # groups that are judged against the reference, the best-ranked first
ASKED: dict[Question, str] = {
    "larger_rate": "Does {first} bear a larger learning rate than {second}?",
    "finite": "Does {first} stay finite at more seeds than {second}?",
    "lower_loss": "Does {first} reach a lower loss than {second} where both trained?",
}
COUNTED: dict[Question, str] = {
    "larger_rate": "The largest finite rate of {first} is larger at {0}, and that of {second} at {1}.",
    "finite": "All runs are finite at {0} with {first}, and at {1} with {second}.",
    "lower_loss": "The loss of {first} is lower at {0}, and that of {second} at {1}.",
}
LEFT_OUT = {  # a reason names the runs that have not ended
    "stopped": "failed or cancelled",
    "arithmetic": "died of float32's arithmetic alone",
    "unmatched": "without a counterpart",
}
COLUMNS = (
    Column("question", "text", "what is asked about the two groups"),
    Column("first", "text", "the first group"),
    Column("second", "text", "the second group"),
    Column("verdict", "text", "holds, does not hold, or cannot tell"),
    Column("reason", "text", "why"),
    Column("first_count", "integer", "seeds at which the first group has the outcome"),
    Column("second_count", "integer", "seeds at which the second group has the outcome"),
    Column("seeds", "integer", "seeds that were compared"),
    *(Column(f"{of}_{end}", "number", "of the 95 % Wilson interval") for of in ("first", "second") for end in ("low", "high")),
    Column("p", "number", "two-sided p-value, adjusted for all pairs of groups"),
)  # fmt: skip


@dataclass(frozen=True)
class GroupClaim:
    """A claim about two groups of a comparison. family: the number of comparisons for which its p-value is adjusted. left_out:
    why runs of the two groups do not count -> how many."""

    question: Question
    first: str
    second: str
    claim: Claim
    family: int
    left_out: Mapping[str, int]

    @property
    def asked(self) -> str:
        return ASKED[self.question].format(first=self.first, second=self.second)

    @property
    def text(self) -> str:
        """The verdict, its reason, the counts with their Wilson intervals, and what does not count."""
        claim = self.claim
        said = f"{claim.verdict.capitalize()}: {claim.reason}."
        if claim.pairs:
            first, second = (str(share).replace(" [", " seeds [") for share in (claim.first, claim.second))
            said += " " + COUNTED[self.question].format(first, second, first=self.first, second=self.second)
        not_counted = ", ".join(f"{n} {LEFT_OUT[why]}" for why, n in self.left_out.items() if n and why in LEFT_OUT)
        return said + (f" Runs that do not count: {not_counted}." if not_counted else "")


def claims_of(session: Session, runs: Sequence[Run], group_by: Sequence[str] | None = None) -> list[GroupClaim]:
    """The claims about these runs, grouped by `group_by`, or else by their layers or maps."""
    if group_by is None:
        group_by = [path for path in (default_groups(runs) or "").split(",") if path]
    return group_claims(compare(session, runs, group_by=group_by, curves=False))


def group_claims(found: Comparison) -> list[GroupClaim]:
    """The reference group against every other group, at most MAX_JUDGED, in the order of their ranks. First whether it bears a
    larger rate, if the runs of a group have several rates, or else whether it stays finite at more seeds; then whether it
    reaches a lower loss."""
    if found.reference is None:
        return []
    others = sorted((i for i in range(len(found.groups)) if i != found.reference), key=lambda i: (found.groups[i]["rank"], i))
    first: Question = "larger_rate" if RATE in found.settings_within else "finite"
    runs = [_outcome_of(run) for run in found.runs]
    pairs = {str(i): _Pair(found, runs, found.reference, i) for i in others[:MAX_JUDGED]}
    family = len(found.groups) * (len(found.groups) - 1) // 2
    claims: list[GroupClaim] = []
    for question in (first, "lower_loss"):
        judged = adjusted({i: pair.judge(question) for i, pair in pairs.items()}, family=family)
        claims += [
            GroupClaim(question, pair.first, pair.second, _while_open(judged[i], pair.left_out), family, pair.left_out)
            for i, pair in pairs.items()
        ]
    return claims


def claims_json(claims: Sequence[GroupClaim]) -> list[dict[str, Any]]:
    """The claims as ClaimAnswers."""
    return [
        {
            "question": one.question,
            "asked": one.asked,
            "first": one.first,
            "second": one.second,
            "verdict": one.claim.verdict,
            "reason": one.claim.reason,
            "text": one.text,
            "seeds": one.claim.pairs,
            "first_share": _share_json(one.claim.first),
            "second_share": _share_json(one.claim.second),
            "p": one.claim.p,
            "family": one.family,
            "left_out": dict(one.left_out),
        }
        for one in claims
    ]


def claims_table(claims: Sequence[GroupClaim], found: Comparison) -> Table:
    """One row per claim, for server.compare.table_formats."""
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (
            one.question, one.first, one.second, one.claim.verdict, one.claim.reason, one.claim.first.count,
            one.claim.second.count, one.claim.pairs, *asdict(one.claim.first.interval).values(),
            *asdict(one.claim.second.interval).values(), one.claim.p,
        )
        for one in claims
    )  # fmt: skip
    statuses = {status: sum(run.status == status for run in found.runs) for status in sorted({run.status for run in found.runs})}
    return Table(0, None, COLUMNS, rows, summary(map(end_of, found.runs)), statuses)


def notes(claims: Sequence[GroupClaim]) -> tuple[str, ...]:
    """Each claim as one line of text, for tables."""
    return tuple(f"{one.asked} {one.text}" for one in claims)


class _Pair:
    """The runs of two groups, paired by their settings. `cells` has the seed, the other settings, the rate, and both outcomes."""

    def __init__(self, found: Comparison, runs: Sequence[Outcome | None], first: int, second: int) -> None:
        self.first, self.second = found.groups[first]["label"], found.groups[second]["label"]
        a, b = found.by_setting[first], found.by_setting[second]
        self.cells: list[tuple[Hashable, Hashable, Any, Outcome, Outcome]] = []
        waiting = stopped = arithmetic = 0
        for key in (key for key in a if key in b):
            values, n = key
            setting = dict(zip(found.settings_within, values, strict=True))
            seed, rate = setting.pop(SEED, None), setting.pop(RATE, None)
            one, other = runs[a[key]], runs[b[key]]
            if one is not None and other is not None:
                self.cells.append((seed, (n, *setting.items()), rate, one, other))
        for i in (*a.values(), *b.values()):
            run, of = found.runs[i], runs[i]
            waiting += of is None
            stopped += run.status in ("failed", "cancelled")
            arithmetic += of is not None and of.finite is None and run.status not in ("failed", "cancelled")
        unmatched = len(a.keys() ^ b.keys())
        self.left_out = {"open": waiting, "stopped": stopped, "arithmetic": arithmetic, "unmatched": unmatched}

    def judge(self, question: Question) -> Claim:
        if question == "larger_rate":
            return self._larger_rate()
        sides: tuple[dict[Any, list[Outcome]], dict[Any, list[Outcome]]] = ({}, {})
        for seed, _, _, *both in self.cells:
            for side, one in zip(sides, both, strict=True):
                side.setdefault(seed, []).append(one)
        compared = compare_maps(*sides)
        return compared.finite if question == "finite" else compared.loss

    def _larger_rate(self) -> Claim:
        """With the rates that both groups have at a seed and otherwise equal settings."""
        ladders: dict[Hashable, dict[Hashable, dict[float, tuple[bool, bool]]]] = {}
        for seed, rest, rate, one, other in self.cells:
            if one.finite is not None and other.finite is not None and isinstance(rate, int | float):
                ladders.setdefault(seed, {}).setdefault(rest, {})[rate] = (one.finite, other.finite)
        sides: list[dict[Any, Any]] = [
            {
                seed: [largest_rate_on_grid({rate: both[side] for rate, both in ladder.items()}) for ladder in cells.values()]
                for seed, cells in ladders.items()
            }
            for side in (0, 1)
        ]
        return bears_larger_rate(*sides)


def _outcome_of(run: Run) -> Outcome | None:
    """What became of a run; None if it has not ended."""
    end = end_of(run)
    if end.outcome == "open":
        return None
    if run.status in ("failed", "cancelled"):
        return Outcome(None, None, None)
    chance = _chance(json.dumps(run.config.get("task"), sort_keys=True))
    return outcome(
        end.loss if end.finite else None, dies_in_float64=False if run.cause == "arithmetic" else None, chance=chance,
        margin=MARGIN * (chance or 0.0),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _chance(task: str) -> float | None:
    """The loss of a model that has learnt nothing of this task, which is JSON text; None if it is unknown."""
    given = json.loads(task)
    section = TASKS.get(str(given.get("name"))) if isinstance(given, dict) else None
    try:
        return None if section is None else section.model_validate(given).chance_loss()
    except ValueError:
        return None  # an older or another program wrote this configuration


def _while_open(claim: Claim, left_out: Mapping[str, int]) -> Claim:
    """A verdict is given once: a test that is repeated until it is significant has no level."""
    if not left_out["open"]:
        return claim
    n = left_out["open"]
    return replace(
        claim,
        verdict="cannot tell",
        reason=f"{n} run{'' if n == 1 else 's'} of the two groups {'has' if n == 1 else 'have'} not ended",
    )


def _share_json(share: Any) -> dict[str, Any]:
    return {"count": share.count, "total": share.total, "low": share.interval.low, "high": share.interval.high}
