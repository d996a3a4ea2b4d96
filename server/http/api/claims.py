"""Claims about groups of runs: which map bears a larger learning rate, stays finite, and reaches a lower loss."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from server.compare.claims import claims_json, claims_table, group_claims
from server.compare.comparison import compare, default_groups
from server.errors import Invalid
from server.http.api.compare import Compared, compared_runs
from server.http.api.deps import DatabaseDep, PrincipalDep
from server.http.api.sweeps import FILES, TABLES
from server.http.schemas.compare import Claims
from server.http.schemas.sweeps import TableFormat
from server.series.encoding import dumps, json_response
from stablessm_core.telemetry.nonfinite import json_safe

router = APIRouter(prefix="/api/compare", tags=["compare"])


@router.get("/claims", response_model=Claims, responses=TABLES)
def claims(
    database: DatabaseDep, principal: PrincipalDep, query: Compared, format: Annotated[TableFormat, Query()] = "json"
) -> Response:
    """Which group of runs does better: one claim per question and group, judged by exact tests paired by seed.

    The groups are those of `group_by`, by default layers or maps. The verdict is `holds`, `does not hold`, or `cannot tell`.
    """
    with database.read() as session:
        runs = compared_runs(session, query, principal)
        grouped = default_groups(runs) if query.group_by is None else query.group_by
        paths = [path.strip() for path in (grouped or "").split(",") if path.strip()]
        try:
            found = compare(session, runs, group_by=paths, against=query.against or None, curves=False)
        except ValueError as error:
            given, _, allowed = str(error).partition("; allowed: ")
            raise Invalid(given, field=given.partition(" ")[0], allowed=allowed or None) from None
    made = group_claims(found)
    if format == "json":
        return json_response(dumps(json_safe({"claims": claims_json(made)})))
    media, ending, write = FILES[format]
    name = f"sweep-{query.sweep}" if query.sweep else "runs"
    headers = {"Content-Disposition": f'attachment; filename="{name}-claims.{ending}"'}
    return Response(write(claims_table(made, found)), media_type=media, headers=headers)
