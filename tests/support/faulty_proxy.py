"""A proxy between a courier and an MLflow server that fails when told to: what an unreliable network or server does.

Faults are functions of the exchange, one for each request in the order in which requests come:

    with FaultyProxy("http://127.0.0.1:5000") as proxy:
        proxy.plan([ok, swallow, ok, answer(503)])    # after these everything passes
        proxy.always = hang                           # or: every request from now on
        proxy.stop_listening(); proxy.listen()        # refused, as where no server runs
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Exchange(BaseHTTPRequestHandler):
    """One connection; each of its requests goes through the fault that is due."""

    protocol_version = "HTTP/1.1"
    server: Server

    def _any(self) -> None:
        proxy = self.server.proxy
        fault = proxy.take(self.path)
        proxy.met[fault.__name__] += 1
        fault(self)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _any

    def body(self, share: float = 1.0) -> bytes:
        """What the client sent, or the first `share` of it."""
        return self.rfile.read(int(share * int(self.headers.get("Content-Length", 0))))

    def forward(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """Hand the request to the server; its answer."""
        connection = http.client.HTTPConnection(self.server.proxy.upstream, timeout=120)
        try:
            connection.request(self.command, self.path, self.body(), dict(self.headers))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def reply(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """Send an answer to the client."""
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in {"connection", "transfer-encoding", "content-length", "date", "server"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def cut(self) -> None:
        """End the connection as a crash does: with a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def handle(self) -> None:
        """A client, or a server, that went away is what this proxy is for."""
        try:
            super().handle()
        except (OSError, ValueError, http.client.HTTPException):
            self.cut()

    def finish(self) -> None:
        """Close what is not closed yet."""
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_: object) -> None:
        """Nothing: faults are no news here."""


Fault = Callable[[Exchange], None]


def ok(exchange: Exchange) -> None:
    """No fault."""
    exchange.reply(*exchange.forward())


def reset(exchange: Exchange) -> None:
    """The connection is gone before anything was read."""
    exchange.cut()


def drop(exchange: Exchange) -> None:
    """The connection is gone in the middle of the request."""
    exchange.body(0.5)
    exchange.cut()


def swallow(exchange: Exchange) -> None:
    """The server did what it was asked; the client never hears of it. Who sends again makes a duplicate."""
    exchange.forward()
    exchange.cut()


def hang(exchange: Exchange) -> None:
    """No answer, until the client gives up or the proxy is told to let go."""
    exchange.body()
    exchange.server.proxy.released.wait(300)
    exchange.cut()


def late(seconds: float) -> Fault:
    """The server hears of it only after `seconds`; a client that gave up meanwhile has sent it again."""

    def late(exchange: Exchange) -> None:
        time.sleep(seconds)
        exchange.reply(*exchange.forward())

    return late


def answer(status: int, text: str = "", **headers: str) -> Fault:
    """The server does nothing and answers `status`."""

    def answer(exchange: Exchange) -> None:
        exchange.body()
        exchange.reply(status, [(name.replace("_", "-"), value) for name, value in headers.items()], text.encode())

    answer.__name__ = f"answer {status}"
    return answer


class Server(ThreadingHTTPServer):
    """One thread a connection."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], proxy: FaultyProxy) -> None:
        self.proxy = proxy
        super().__init__(address, Exchange)

    def handle_error(self, *_: object) -> None:
        """Nothing: see `Exchange.handle`."""


class FaultyProxy:
    """Listens on a port of loopback in front of the server `url`; `met` counts what happened to the requests."""

    def __init__(self, url: str) -> None:
        self.upstream = urlsplit(url).netloc
        self.always: Fault = ok
        self.met: Counter[str] = Counter()
        self.released = threading.Event()
        self._due: deque[Fault] = deque()
        self._where, self._port = "", 0
        self._server: Server | None = None
        self.listen()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self._port}"

    def plan(self, faults: Iterable[Fault], where: str = "") -> None:
        """What happens to the next requests whose path holds `where`, one each."""
        self._due.extend(faults)
        self._where = where

    def take(self, path: str) -> Fault:
        """The fault that is due for a request of `path`."""
        if self._where in path:
            with contextlib.suppress(IndexError):
                return self._due.popleft()
        return self.always

    @property
    def left(self) -> int:
        """How many planned faults have not happened yet."""
        return len(self._due)

    def listen(self) -> None:
        """Take connections, on the same port as ever."""
        self._server = Server(("127.0.0.1", self._port), self)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop_listening(self) -> None:
        """Refuse connections from now on."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.stop_listening()
