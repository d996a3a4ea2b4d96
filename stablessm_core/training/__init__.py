"""Trains one run, from its configuration to its outcome: loop, step, optimizer, checkpoints, environment."""
