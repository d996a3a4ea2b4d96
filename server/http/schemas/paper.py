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


class PaperAnswer(Answer):
    claims_sha256: str = Field(description="SHA-256 of the registered claims (docs/paper/claims.json).")
    family_size: int = Field(description="How many tests are in the registered family.")
    counts: dict[str, int] = Field(description="How many claims have each verdict.")
    claims: list[ClaimAnswer]
    reports: list[PaperReport]
