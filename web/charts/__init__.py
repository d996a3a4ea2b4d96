"""One chart per file; `web.figures` registers them."""
