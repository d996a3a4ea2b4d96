"""A run from submission to its end: queues, claims, status changes, attempts, forks, verdict."""
