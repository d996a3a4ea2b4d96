"""No training step has ended for a long time. The process that supervises the training raises it."""

from __future__ import annotations

from pydantic import Field

from stablessm_core.section import Section
from stablessm_core.telemetry.detectors.alert import AlertKind


class Settings(Section):
    no_progress_seconds: float | None = Field(300.0, ge=1, le=864_000, description="Alert when no step ends for this long.")


KIND = AlertKind(
    name="no_progress",
    severity="warning",
    meaning="No training step has ended for `alerts.no_progress_seconds`.",
    settings=Settings,
    of_attempt=True,
)
