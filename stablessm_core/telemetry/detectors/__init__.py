"""Alerts: every kind with its detector, and the registry of all kinds. Does not import torch."""

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Setup, Severity
from stablessm_core.telemetry.detectors.episodes import REARM_STEPS, Detectors
from stablessm_core.telemetry.detectors.registry import KINDS
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows, Values

__all__ = ["KINDS", "REARM_STEPS", "Alert", "AlertKind", "Detectors", "LayerRows", "Rows", "Setup", "Severity", "Values"]
