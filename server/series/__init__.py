"""Recorded numbers: how they are stored, found again, derived, shortened and encoded."""
