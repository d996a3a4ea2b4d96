"""LRU: a complex diagonal recurrence in discrete time, started on a ring."""
