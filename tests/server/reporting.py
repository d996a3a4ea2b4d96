"""A program that reports a run over HTTP, as docs/protocol.md says, for tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from stablessm_core.report.frames import CONTENT_TYPE, pack
from stablessm_core.report.messages import CatalogueMessage, TelemetryMessage, to_bytes
from tests.mutated_frames import CATALOGUE


@dataclass
class Program:
    """Opens a run when it is made, and posts messages. headers: the token, if the client does not send one itself."""

    client: httpx.Client
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    more: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    opened: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        answer = self.open()
        assert answer.status_code in (200, 201), answer.text
        self.opened = answer.json()

    def open(self, **more: Any) -> httpx.Response:
        return self.client.post("/api/ingest/runs", json={"id": self.id} | self.more | more, headers=self.headers)

    @property
    def run_id(self) -> int:
        return int(self.opened["run_id"])

    def post(self, *messages: TelemetryMessage, attempt: int | None = None) -> httpx.Response:
        return self.post_bytes(pack(map(to_bytes, messages)), attempt=attempt)

    def post_bytes(self, body: bytes | Iterable[bytes], *, attempt: int | None = None, **headers: str) -> httpx.Response:
        attempt = self.opened["attempt"] if attempt is None else attempt
        sent = self.headers | {"X-Attempt": str(attempt), "Content-Type": CONTENT_TYPE} | headers
        return self.client.post(f"/api/ingest/runs/{self.run_id}/records", content=body, headers=sent)

    def describe(self) -> None:
        """Post the catalogue of `mutated_frames`."""
        answer = self.post(CatalogueMessage(CATALOGUE))
        assert answer.status_code == 200, answer.text
