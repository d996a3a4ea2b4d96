"""Gated linear attention: a decay per key channel, which the input gates, and a matrix as state."""
