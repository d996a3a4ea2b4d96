"""Runs and writes: claims runs, trains each in a process of its own, stores what it records."""
