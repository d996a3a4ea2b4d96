"""Access: tokens, browser sessions, scopes, rate limits and the audit log."""
