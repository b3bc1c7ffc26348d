"""Horovod's rendezvous server as TonY and others run it: GET, PUT and DELETE of /scope/key."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        body = self.server.texts.get(self.path)
        self._answer(404 if body is None else 200, body or b"")

    def do_PUT(self) -> None:
        if self.path.count("/") != 2:
            return self._answer(400)
        self.server.texts[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        return self._answer(200)

    def do_DELETE(self) -> None:
        self.server.texts.pop(self.path, None)
        self._answer(200)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    texts: dict[str, bytes]


@contextlib.contextmanager
def key_value_server(host: str = "127.0.0.1", port: int = 0) -> Iterator[_Server]:
    """A running one; `server_address` has its port, and `texts` what was put."""
    with _Server((host, port), _Handler) as server:
        server.texts = {}
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    import sys

    with key_value_server(sys.argv[1], int(sys.argv[2])):
        threading.Event().wait()
