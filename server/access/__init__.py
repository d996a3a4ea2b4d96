"""Access control: tokens, browser sessions, scopes, rate limits and the audit log."""
