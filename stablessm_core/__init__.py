"""Stable state-space models: reparameterisations, scans, layers, training, per-eigenvalue telemetry.

Importing this package (and `config`, `client`, `formulas`, `telemetry.series`, `telemetry.blocks`) never imports torch.
"""

__version__ = "0.1.0"
