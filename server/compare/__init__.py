"""Compares runs: differences, curves, groups, sweeps, and tables of sweeps."""
