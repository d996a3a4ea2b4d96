"""Who may do what: tokens, sessions, scopes, limits and the audit log."""
