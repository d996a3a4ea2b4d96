"""Stable state-space models: reparameterisations, scans, layers, training, per-eigenvalue telemetry.

Importing this package never imports torch; nor do `config`, `client`, `maps`, `forms`, `theory`, `telemetry.series` and
`telemetry.blocks`.
"""

__version__ = "0.2.0"
