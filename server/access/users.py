"""Users: whose a token is, under which name they are shown, what they may use. There are no passwords here."""

from __future__ import annotations

OWNER = 0  # the user of the settings' token; has a row as soon as it has a name or a quota
OWNER_NAME = "owner"
