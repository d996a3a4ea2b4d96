"""The JSON of the paper's claims with our verdicts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from server.http.schemas.runs import Answer

Result = Literal["holds", "does not hold", "cannot tell", "cannot be tested here"]
EXAMPLE: dict[str, Any] = {
    "id": "table5-ratios",
    "place": "Table 5",
    "sentence": "The “best” parameterization is optimal in the sense it has a bounded gradient-over-weight ratio.",
    "numbers": {"best": "2|w| / |w| = 2"},
    "verdict": "holds",
    "why": "G / |w| of best is 2 at λ = 0.9, 0.99 and 0.999.",
    "test": "Is G / |w| of best 2? An exact computation; relative tolerance 0.01.",
    "registered": True,
    "label": None,
    "p": None,
    "p_holm": None,
    "report": "table5",
    "source": "computed",
    "figure": 0,
    "ours": {"caption": "G / |w|", "rows": [["λ", "best"], ["0.9", "2"]]},
    "sweeps": [],
    "command": "stablessm reproduce table5",
    "problems": [],
    "departures": [],
}


class OwnNumbers(Answer):
    caption: str
    rows: list[list[str]] = Field(description="The first row has the titles of the columns.")


class ClaimAnswer(Answer):
    """A sentence of the paper, and our verdict on it."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    id: str
    place: str = Field(description="Where the paper states it.")
    sentence: str
    numbers: dict[str, Any] = Field(description="The paper's numbers.")
    verdict: Result
    why: str = Field(description="The reason for the verdict.")
    test: str = Field(description="The registered test, in words; empty if there is none.")
    registered: bool = Field(description="Whether its p-value belongs to the registered family.")
    label: str | None = Field(description="What a reader must know about the data.")
    p: float | None
    p_holm: float | None = Field(description="p after Holm's correction over the registered family.")
    report: str | None = Field(description="Name of the report that judges it; null if there is none yet.")
    source: Literal["runs", "computed", "committed"] | None = Field(
        description="`runs`: runs of this server. `computed`: computed at once. `committed`: it came with the program."
    )
    figure: int | None = Field(description="Number of its figure in the report.")
    ours: OwnNumbers | None = Field(description="Our numbers.")
    sweeps: list[int] = Field(description="The sweeps of this server whose runs judge it.")
    command: str | None = Field(description="The command that judges it again; null if it cannot be tested here.")
    problems: list[str] = Field(description="What is missing or mixed.")
    departures: list[str] = Field(description="How our runs differ from the paper's.")


Source = Literal["runs", "computed", "committed"]


class OtherReport(Answer):
    source: Source
    size: str
    seeds: int


class PaperReport(Answer):
    name: str
    title: str
    source: Literal["runs", "computed", "committed"]
    size: str = Field(description="`full`, or `quick`, which judges nothing.")
    seeds: int
    commit: str
    versions: list[str]
    machines: list[str]
    claims_changed: bool = Field(description="Whether claims.json has changed since the runs were submitted.")
    other: OtherReport | None = Field(description="A second report of this name; the one with more seeds comes first.")


class Lives(Answer):
    count: int = Field(description="How many of the seeds that died stay finite with the change.")
    total: int
    interval: tuple[float, float] = Field(description="95 % Wilson interval of the share.")


class DeathCounts(Answer):
    """The runs of one layer, map and learning rate, and what killed those that died."""

    layer: str
    map: str = Field(description="`native`, `native, frozen`, `direct` or `best`.")
    rate: float
    runs: int
    deaths: int
    interval: tuple[float, float] = Field(description="95 % Wilson interval of the share of deaths.")
    float64: dict[str, int] = Field(description="Deaths by the kind that float64 shows: `dynamics`, `range`, `arithmetic`.")
    killed_by: dict[str, int] = Field(description="Deaths by culprit: `recurrence`, `other weights`, `arithmetic`.")
    live_frozen: Lives | None = Field(description="With the recurrence frozen from the start; null without such runs.")
    live_with_best: Lives | None = Field(description="With the map `best` from the start; null without such runs.")


class BeyondAnswer(Answer):
    """A study beyond the paper's claims. It is exploratory: none of its tests was registered."""

    name: str
    title: str
    question: str
    command: str = Field(description="The command that measures it again.")
    report: str | None = Field(description="Name of the report; null if there is none yet.")
    source: Source | None
    size: str | None
    seeds: int | None
    findings: list[str] = Field(description="The results in sentences.")
    tables: list[OwnNumbers]
    figures: int = Field(description="Number of figures of the report.")
    deaths: list[DeathCounts] = Field(description="For `culprits`: the deaths by layer, map and learning rate.")
    sweeps: list[int] = Field(description="The sweeps of this server behind it.")
    problems: list[str] = Field(description="What is missing or mixed.")
    departures: list[str] = Field(description="How it was measured.")


class PaperAnswer(Answer):
    claims_sha256: str = Field(description="SHA-256 of the registered claims (docs/paper/claims.json).")
    family_size: int = Field(description="How many tests are in the registered family.")
    counts: dict[str, int] = Field(description="How many claims have each verdict.")
    claims: list[ClaimAnswer]
    reports: list[PaperReport]
    beyond: list[BeyondAnswer] = Field(description="What was measured beyond the paper's claims.")
