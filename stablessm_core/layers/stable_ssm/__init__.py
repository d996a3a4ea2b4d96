"""StableSSM: a real diagonal recurrence whose eigenvalues are any map of their weights."""
