"""minGRU: a gated recurrent unit whose gate and candidate do not see the state, which makes it linear in it."""
