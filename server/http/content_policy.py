"""The security headers of every response, and the content security policy."""

from __future__ import annotations

import base64
import hashlib

# Plotly adds an empty style element and fills it through the CSSOM (the first hash is the hash of the empty string). Plotly's
# map library adds a style element with fixed rules (the second hash).
CSP = (
    "default-src 'none'; script-src 'self'; style-src-elem 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' "
    "'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='; "
    "style-src-attr 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def policy_with_inline(html: str) -> str:
    """The content security policy of a page with its own style elements. The login page has such elements, because static files
    need a token."""
    hashes = []
    for part in html.split("<style>")[1:]:
        digest_of_style = hashlib.sha256(part.split("</style>")[0].encode()).digest()
        hashes.append(f"'sha256-{base64.b64encode(digest_of_style).decode()}'")
    return CSP.replace("style-src-elem 'self'", " ".join(["style-src-elem 'self'", *hashes]))
