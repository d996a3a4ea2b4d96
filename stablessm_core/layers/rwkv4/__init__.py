"""RWKV-4's time mixing: an average of values with exponential weights that fade by one eigenvalue per channel."""
