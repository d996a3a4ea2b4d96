"""A real HTTP or HTTPS server that webhooks call. It can misbehave as real receivers do."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Receiver:
    """A receiver. It gives `answers` in order and repeats the last one; `calls` has the (headers, body) of each request."""

    port: int = 0
    answers: list[bytes] = field(default_factory=lambda: [b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"])
    calls: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    drip: bool = False  # send an endless answer, byte by byte
    held: threading.Event = field(default_factory=threading.Event)  # while this event is cleared, answers wait

    def __post_init__(self) -> None:
        self.held.set()

    def events(self) -> list[dict[str, Any]]:
        return [event for _, body in list(self.calls) for event in json.loads(body)["events"]]


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextmanager
def receiving(context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver, stopping = Receiver(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    receiver.port = listener.getsockname()[1]

    def serve() -> None:
        while not stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    def handle(connection: socket.socket) -> None:
        try:
            connection.settimeout(120)
            with context.wrap_socket(connection, server_side=True) if context else connection as stream:
                data = b""
                while b"\r\n\r\n" not in data and (more := stream.recv(65_536)):
                    data += more
                head, _, body = data.partition(b"\r\n\r\n")
                headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
                headers = {"": head.decode().split("\r\n")[0], **{k.lower(): v for k, v in headers.items()}}
                while len(body) < int(headers.get("content-length", 0)) and (more := stream.recv(65_536)):
                    body += more
                receiver.calls.append((headers, body))
                if receiver.drip:
                    while not stopping.is_set():
                        stream.sendall(b"H")
                        time.sleep(0.1)
                receiver.held.wait()
                stream.sendall(receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0])
        except (OSError, ValueError):
            pass  # the client has disconnected, which some tests cause deliberately

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        stopping.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def certificate(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """(file of a self-signed certificate for this name, SSL context of a server with it)."""
    key, file = folder / "key.pem", folder / "certificate.pem"
    until = datetime.timedelta(days=2).days
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(file),
        "-days",
        str(until),
    ]
    subprocess.run([*command, "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return file, context
