"""How long the scan takes, beside its bound and its alternatives."""
