"""L2RU: a recurrence with dense matrices whose gain from input to output is certified."""
