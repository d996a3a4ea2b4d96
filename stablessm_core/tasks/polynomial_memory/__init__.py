"""Linear functional with polynomially decaying memory: the task on which the paper measures stability."""
