"""DSS: diagonal state spaces whose channels share their modes, exponential or normalised over the length."""
