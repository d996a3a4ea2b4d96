"""Stable state-space models: reparameterisations, scans, layers, training, per-eigenvalue telemetry.

Importing this package does not import torch. The same is true of its modules `plugins`, `map`, `maps`, `telemetry`, `spec`,
`theory`, `verdict` and `client`.
"""

__version__ = "0.2.0"
