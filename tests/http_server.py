"""An HTTP server of a test, on the loopback address."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar


class Handler(BaseHTTPRequestHandler):
    """Answers with whole texts, and writes no log."""

    def get(self) -> None:
        """Answer a GET."""
        self.post()

    def post(self) -> None:
        """Answer a POST."""

    def do_GET(self) -> None:
        self.get()

    def do_POST(self) -> None:
        self.post()

    def answer(self, status: int, text: str = "", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def body(self) -> Any:
        """Return what the client sent as JSON."""
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, *_args: Any) -> None:
        return


Kind = TypeVar("Kind", bound=Handler)


@contextmanager
def answering(base: type[Kind], **attributes: Any) -> Iterator[tuple[type[Kind], str]]:
    """Yield a class of its own for the requests of this server, and the URL of the server."""
    kind: type[Kind] = type("OneHandler", (base,), attributes)
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield kind, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
