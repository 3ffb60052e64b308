"""The health of a long-running service: what it did, whether it is well, and both over HTTP."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from gradwatch.errors import RunError

log = logging.getLogger("gradwatch")

PATIENCE = 3  # intervals without a sign of life
CLIENT_SECONDS = 10.0  # of one client, from its connection to the end of its answer
MOST_CLIENTS = 64  # at once; one more is turned away


@dataclass(eq=False)
class Health:
    """Counts of a monitor, plain numbers that its one thread writes; `every` is the pause between its passes, in s."""

    every: float
    seen: int = 0
    updated: int = 0
    corrupt: int = 0
    errors: int = 0
    notified: int = 0
    not_notified: int = 0
    passes: int = 0
    pass_seconds: float = 0.0
    succeeded: float = 0.0  # unix time of the end of the last pass that succeeded
    alive: float = field(default_factory=time.monotonic)  # of its start, its last good pass, its last run

    def is_well(self) -> bool:
        """Whether a pass succeeded, or a run was brought up to date, within the last three intervals."""
        return time.monotonic() - self.alive < PATIENCE * self.every

    def collect(self) -> Iterable[Any]:
        """The counts, as prometheus_client collects them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, text, value in (
            ("updated", "Runs brought up to date", self.updated),
            ("corrupt", "Runs found unreadable", self.corrupt),
            ("errors", "Runs and passes that failed for the tracking server's sake", self.errors),
            ("notified", "Alerts delivered", self.notified),
            ("not_notified", "Attempts to deliver an alert that failed", self.not_notified),
            ("passes", "Passes over the tracking server that succeeded", self.passes),
        ):
            yield CounterMetricFamily(f"gradwatch_monitor_{name}", text, value=value)
        for name, text, number in (
            ("runs", "Watched runs on the tracking server, in the last pass", self.seen),
            ("pass_seconds", "Seconds that the last pass took", self.pass_seconds),
            ("last_success_timestamp_seconds", "Unix time of the last pass that succeeded", self.succeeded),
        ):
            yield GaugeMetricFamily(f"gradwatch_monitor_{name}", text, value=number)


def serve(health: Health, host: str, port: int) -> WSGIServer:
    """Answer `/metrics` (Prometheus) and `/healthz` (200 or 503), each client from a thread of its own.

    Raises:
        RunError: prometheus_client is not installed, or the address cannot be listened on.
    """
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
    except ImportError:
        raise RunError(
            "prometheus_client is not installed: pip install 'gradwatch[service]', or pass --listen none"
        ) from None
    registry = CollectorRegistry()
    registry.register(health)
    metrics = make_wsgi_app(registry)

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        path, status = environ["PATH_INFO"], "404 Not Found"
        if path == "/metrics":
            page: Iterable[bytes] = metrics(environ, start_response)
            return page
        if path == "/healthz":
            status = "200 OK" if health.is_well() else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [status.encode() + b"\n"]

    try:
        server = make_server(host, port, app, server_class=_Server, handler_class=_Quiet)
    except (OSError, TypeError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(f"cannot listen on {host}:{port} ({why}): choose another with --listen") from error
    threading.Thread(target=server.serve_forever, name="gradwatch-health", daemon=True).start()
    return server


class _Server(ThreadingMixIn, WSGIServer):
    """One whose clients wait for no other, however slow that is."""

    daemon_threads = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._free = threading.BoundedSemaphore(MOST_CLIENTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a client, if there are not too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one client; cut it off when its time is up, whatever it does in it."""
        timer = threading.Timer(CLIENT_SECONDS, _hang_up, [request])
        timer.daemon = True
        try:
            timer.start()
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""
        log.debug("%s", client_address, exc_info=True)


def _hang_up(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


class _Quiet(WSGIRequestHandler):
    """One that writes no line for each request."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""
