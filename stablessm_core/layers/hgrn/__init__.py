"""HGRN: a gated linear recurrence whose forget gate has a lower bound that grows with the depth."""
