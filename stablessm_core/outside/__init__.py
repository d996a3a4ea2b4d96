"""Watches the eigenvalues of a model that another program trains, and reports them to a server or a file."""
