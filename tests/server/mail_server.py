"""A real SMTP server on loopback that keeps the mails it gets. It can demand TLS and a password, and refuse recipients."""

from __future__ import annotations

import base64
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class MailServer:
    """mails: (sender, recipient, text) of each. refused: recipients that get a 550. encrypted, signed_in: of the last mail."""

    port: int = 0
    context: ssl.SSLContext | None = None  # offers STARTTLS with it
    from_the_start: bool = False  # speaks TLS from the first byte
    login: tuple[str, str] | None = None
    refused: set[str] = field(default_factory=set)
    mails: list[tuple[str, str, str]] = field(default_factory=list)
    encrypted: bool = False
    signed_in: bool = False


class _Dialogue(socketserver.StreamRequestHandler):
    server: _Listener

    def handle(self) -> None:
        mail, sender, recipient = self.server.mail, "", ""
        encrypted = signed_in = False
        if mail.from_the_start:
            self._encrypt()
            encrypted = True
        self._say("220 mail.example.org ready")
        while line := self.rfile.readline().decode().strip():
            word = line.upper().split(" ")[0]
            if word == "EHLO":
                offers = ["STARTTLS"] if mail.context and not encrypted else []
                offers += ["AUTH PLAIN"] if mail.login else []
                lines = ["mail.example.org", *offers, "8BITMIME"]
                self._say("\r\n".join(f"250{' ' if i == len(lines) - 1 else '-'}{text}" for i, text in enumerate(lines)))
            elif word == "STARTTLS":
                self._say("220 go ahead")
                self._encrypt()
                encrypted = True
            elif word == "AUTH":
                _, user, password = base64.b64decode(line.split(" ")[2]).decode().split("\0")
                signed_in = (user, password) == mail.login
                self._say("235 welcome" if signed_in else "535 wrong password")
            elif word == "MAIL":
                sender = line.split("<")[1].split(">")[0]
                self._say("250 OK" if signed_in or not mail.login else "530 sign in first")
            elif word == "RCPT":
                recipient = line.split("<")[1].split(">")[0]
                self._say("550 no such user" if recipient in mail.refused else "250 OK")
            elif word == "DATA":
                self._say("354 end with a dot")
                text = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    text += part
                mail.mails.append((sender, recipient, text.decode()))
                mail.encrypted, mail.signed_in = encrypted, signed_in
                self._say("250 queued as 17")
            elif word == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 OK")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def _encrypt(self) -> None:
        assert self.server.mail.context is not None
        self.connection = self.server.mail.context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, mail: MailServer) -> None:
        self.mail = mail
        super().__init__(("127.0.0.1", 0), _Dialogue)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client has disconnected, which some tests cause deliberately


@contextmanager
def mail_server(**options: object) -> Iterator[MailServer]:
    mail = MailServer(**options)  # type: ignore[arg-type]
    with _Listener(mail) as listener:
        mail.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield mail
        finally:
            listener.shutdown()
            thread.join()
