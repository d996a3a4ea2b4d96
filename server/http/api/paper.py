"""The paper's claims, each with our verdict, and the reports that judge them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy.orm import Session

from server.errors import NotFound
from server.http.api.deps import DatabaseDep, SettingsDep
from server.http.api.figures import FIGURE
from server.http.beyond import beyond_json
from server.http.figure_files import PaperDep, figure_answer
from server.http.paper_files import FORMATS, report_file
from server.http.paper_reports import Shown, reports_of
from server.http.schemas.paper import PaperAnswer
from server.settings import Settings
from stablessm_core.telemetry.nonfinite import json_safe
from studies.paper.catalogue import TRAINED
from studies.paper.judge import UNKNOWN, VERDICTS, test_in_words, without_test
from studies.paper.registry import Claim, Registry, report_name
from studies.paper.words import claim_figure, claim_numbers
from web.charts import CHARTS
from web.paper_figures import paper_figure

router = APIRouter(prefix="/api/paper", tags=["paper"])
FromSource = Annotated[
    Literal["runs", "computed", "committed"] | None,
    Query(description="Which of several reports of this name; by default the first."),
]
Name = Annotated[str, Path(max_length=40, description="Name of the report, such as `table5` or `table2-released`.")]
FILES: dict[int | str, dict[str, Any]] = {
    200: {"content": {media: {"schema": {"type": "string", "format": "binary"}} for media in FORMATS.values()}}
}
TITLES = {
    "stablessm reproduce table2 --preset paper": "Table 2, the layer of the paper's text",
    "stablessm reproduce table2 --preset released": "Table 2, the layer of the authors' code",
    "stablessm reproduce table3": "Table 3 on a sample that is not CIFAR-10",
    "stablessm reproduce table5": "Table 5, gradient norm functions",
    "stablessm reproduce table7": "Table 7, associative recall",
    "stablessm reproduce fig1": "Figure 1, perturbed models",
    "stablessm reproduce fig2": "Figure 2, output and gradient near the boundary",
    "stablessm reproduce fig3": "Figure 3, gradient over weight during training",
    "stablessm reproduce fig4": "Figures 4 and 7, language models",
    "stablessm reproduce fig6": "Figure 6, gradient over weight near the boundary",
}  # by command, for studies without a report
NO_RESULT = "No runs of this installation and no committed report judge this claim yet."


def paper_json(session: Session, settings: Settings) -> tuple[dict[str, Any], dict[str, Shown]]:
    """The PaperAnswer, and the reports by name. Raises NotFound if this installation has no registered claims."""
    registry, all_reports = _reports(session, settings)
    reports = {name: shown[0] for name, shown in all_reports.items()}
    claims = [_claim_json(claim, reports) for claim in registry.claims]
    answer = {
        "claims_sha256": registry.sha256,
        "family_size": registry.family_size,
        "counts": {verdict: sum(one["verdict"] == verdict for one in claims) for verdict in VERDICTS},
        "claims": claims,
        "reports": [_report_json(name, shown) for name, shown in all_reports.items()],
        "beyond": beyond_json(reports),
    }
    return answer, reports


def paper_sections(paper: dict[str, Any]) -> list[tuple[str, dict[str, Any] | None, list[dict[str, Any]]]]:
    """The sections of the page: title, report and claims of each study, then the claims that belong to no study."""
    reports = {report["name"]: report for report in paper["reports"]}
    groups: dict[str, list[dict[str, Any]]] = {}
    for claim in paper["claims"]:
        groups.setdefault(claim["report"] or claim["command"] or "", []).append(claim)
    untested = groups.pop("", [])
    found = [
        (reports[name]["title"] if name in reports else TITLES[name], reports.get(name), claims)
        for name, claims in groups.items()
    ]
    return found + ([("Claims that cannot be tested here", None, untested)] if untested else [])


def claim_figures(paper: dict[str, Any], reports: dict[str, Shown]) -> dict[str, dict[str, Any]]:
    """The figure of each claim that has one: {chart, title, caption, figure with data}."""
    found = {}
    for claim in paper["claims"]:
        if claim["figure"] is not None:
            figure = reports[claim["report"]][0]["figures"][claim["figure"]]
            title = CHARTS[figure["chart"]].title
            found[claim["id"]] = {
                "chart": figure["chart"], "title": title, "caption": figure["caption"], "figure": json_safe(paper_figure(figure)),
            }  # fmt: skip
    return found


@router.get("", response_model=PaperAnswer)
def index(database: DatabaseDep, settings: SettingsDep) -> Any:
    """Every registered claim of the StableSSM paper: its sentence and numbers, our numbers, the verdict and the test behind it.

    A claim is judged from the newest reproduction on this server (`stablessm reproduce`), else from the committed report."""
    with database.read() as session:
        return paper_json(session, settings)[0]


@router.get("/reports/{report}", response_class=Response, responses=FILES)
def download(
    report: Name,
    database: DatabaseDep,
    settings: SettingsDep,
    format: Annotated[Literal["json", "html", "md", "tex"], Query(description="`html`, `md` and `tex` are files.")] = "json",
    source: FromSource = None,
) -> Response:
    """A report with its tables, its figures and the exact configurations. The same runs give the same bytes."""
    with database.read() as session:
        registry, reports = _reports(session, settings)
    shown, _ = _find(reports, report, source)
    headers = {"Content-Disposition": f'attachment; filename="{report}.{format}"'}
    return Response(report_file(shown, registry, format, report), media_type=FORMATS[format], headers=headers)


@router.get("/reports/{report}/figures/{number}", **FIGURE)
def figure(
    report: Name,
    number: Annotated[int, Path(ge=0, le=99, description="Number of the figure in the report, from 0.")],
    database: DatabaseDep,
    settings: SettingsDep,
    paper: PaperDep,
    source: FromSource = None,
) -> Response:
    """One figure of a report."""
    with database.read() as session:
        _, reports = _reports(session, settings)
    shown, _ = _find(reports, report, source)
    figures = shown["figures"]
    if number >= len(figures):
        raise NotFound(f"report {report} has no figure {number}", field="number", allowed=f"0 to {len(figures) - 1}")
    drawn = paper_figure(figures[number])
    return figure_answer(drawn, figures[number]["chart"], of=report, name=f"{report}-{number}", paper=paper)


def _reports(session: Session, settings: Settings) -> tuple[Registry, dict[str, list[Shown]]]:
    try:
        return reports_of(session, settings)
    except ValueError as error:
        raise NotFound(str(error), field="claims") from None


def _find(reports: dict[str, list[Shown]], name: str, source: str | None) -> Shown:
    """The report with this name, from this source if one is given. Raises NotFound."""
    if name not in reports:
        raise NotFound(f"there is no report {name[:80]!r}", field="report", allowed=", ".join(reports))
    found = next((shown for shown in reports[name] if source in (None, shown[1])), None)
    if found is None:
        allowed = ", ".join(shown[1] for shown in reports[name])
        raise NotFound(f"report {name} has no version from {source!r}", field="source", allowed=allowed)
    return found


def _claim_json(claim: Claim, reports: dict[str, Shown]) -> dict[str, Any]:
    """The ClaimAnswer."""
    name = None if claim.study is None else report_name(claim.study, claim.preset)
    shown = reports.get(name) if name else None
    answer: dict[str, Any] = {
        "id": claim.id, "place": claim.place, "sentence": claim.sentence, "numbers": claim.numbers, "registered": claim.family,
        "label": claim.label, "test": test_in_words(claim) if claim.test else "", "p": None, "p_holm": None,
        "report": name if shown else None, "source": shown[1] if shown else None, "figure": None, "ours": None, "sweeps": [],
        "command": command(claim), "problems": [], "departures": [], "verdict": UNKNOWN, "why": NO_RESULT,
    }  # fmt: skip
    fixed = without_test(claim)
    if fixed is not None and (shown is None or claim.untestable):
        answer |= {"verdict": fixed.verdict, "why": fixed.why if claim.untestable else NO_RESULT}
    if shown is None:
        return answer
    report, source = shown
    found = next((one for one in report["verdicts"] if one["claim"] == claim.id), None)
    if found is not None:
        answer |= {word: found[word] for word in ("verdict", "why", "p", "p_holm")}
    caption, rows = claim_numbers(claim, report)
    answer |= {
        "figure": claim_figure(claim, report),
        "ours": {"caption": caption, "rows": rows} if rows else None,
        "sweeps": [one["id"] for one in report["sweeps"]] if source == "runs" else [],
        "problems": report["problems"],
        "departures": report["departures"],
    }
    return answer


def _report_json(name: str, reports: list[Shown]) -> dict[str, Any]:
    """The PaperReport. A second report of the same name is named in `other`."""
    words = ("title", "size", "seeds", "commit", "versions", "machines", "claims_changed")
    (report, source), *others = reports
    other = None if not others else {"source": others[0][1], "size": others[0][0]["size"], "seeds": others[0][0]["seeds"]}
    return {"name": name, "source": source, "other": other} | {word: report[word] for word in words}


def command(claim: Claim) -> str | None:
    """The command that judges a claim; None if it cannot be tested here."""
    if claim.study is None or (claim.untestable and claim.label is None):
        return None
    preset = f" --preset {claim.preset}" if claim.preset and (claim.study, claim.preset) in TRAINED else ""
    return f"stablessm reproduce {claim.study}{preset}"
