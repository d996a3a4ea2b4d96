"""Experiments with many runs. Each study submits ordinary runs through the HTTP client, waits for them, and summarizes their
results."""
