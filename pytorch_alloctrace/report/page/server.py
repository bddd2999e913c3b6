"""Server of the page for browsers on this machine.

The page requests the memory at any event of the trace, and the memory by role and line over any part of the run.

A request is answered if it arrives at the loopback address, its path has the token, and its Host header names this
machine. Without the check of Host, a foreign page could make its own name resolve to this machine (DNS rebinding).
Without the token, any other page and any user of this machine could send requests. No header allows another page to
read an answer. A path consists of the token and one name, so no file can be requested.
"""

from __future__ import annotations

import functools
import hmac
import io
import os
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ...errors import PositionError, ReportError
from ...reading.recorded import RecordedTrace
from .data import PageData, build_layers_data, build_page_data, build_snapshot_data
from .report import render_page

_ADDRESS = "127.0.0.1"
_HOST_NAMES = (_ADDRESS, "localhost")
_MAX_CACHED_ANSWERS = 64
MAX_CONNECTIONS = 32
"""A browser opens about six connections at once."""
RECEIVE_TIMEOUT_S = 30
"""Seconds from the connection to the end of the request's headers."""
SEND_TIMEOUT_S = 300
"""Seconds for a client to read the answer. Megabytes through a slow tunnel take minutes."""

_REDIRECT = """\
<!DOCTYPE html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={address}">
<title>pytorch_alloctrace</title>
<a href="{address}">Open the report</a>
"""


class ReportServer:
    def __init__(self, trace: RecordedTrace, port: int = 0) -> None:
        """Bind a port of the loopback address, or raise ReportError. Port 0 means any free port."""
        self._trace = trace
        self._token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._answers: OrderedDict[tuple[int, ...], bytes] = OrderedDict()
        self._redirect: Path | None = None
        try:
            self._server = _Server((_ADDRESS, port), functools.partial(_Handler, self))
        except OSError as error:
            raise ReportError(
                f"port {port} cannot be used: {error.strerror or error}; give another --port, or none"
            ) from None

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """Address of the page, including the token: everyone with the address can read the trace."""
        return f"http://{_ADDRESS}:{self.port}/{self._token}/"

    @functools.cached_property
    def _data(self) -> PageData:
        return build_page_data(self._trace, live=True)

    @functools.cached_property
    def page(self) -> bytes:
        return render_page(self._data.title, self._data.packed, live=True).encode()

    def write_redirect(self) -> Path:
        """Write a file that leads a browser to `address`, and return its path.

        Every user of the machine can read a browser's command line, but only this user can read the file (mode 0600).
        The server removes the file when the page is first requested, or in `close` or `release_port`.
        """
        try:
            # Stored before the file is created: with `mkstemp`, a signal between the two would leave the file behind.
            self._redirect = Path(tempfile.gettempdir(), f"alloctrace-{secrets.token_hex(8)}.html")
            with open(self._redirect, "x", opener=lambda path, flags: os.open(path, flags, mode=0o600)) as file:
                file.write(_REDIRECT.format(address=self.address))
        except OSError as error:
            reason = error.strerror or error
            raise ReportError(f"no temporary file for --open: {reason}; set TMPDIR, or omit --open") from None
        return self._redirect

    def serve(self) -> None:
        """Answer requests until another thread calls `close`, or KeyboardInterrupt is raised."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop `serve` from another thread, and release the port."""
        self._server.shutdown()
        self._server.server_close()
        self._remove_redirect()

    def release_port(self) -> None:
        """Release the port, after `serve` has ended."""
        self._server.server_close()
        self._remove_redirect()
        # Wait for an answer in progress: at exit, a daemon thread that waits for the GIL aborts the process.
        with self._lock:
            pass

    def _remove_redirect(self) -> None:
        if self._redirect is not None:
            self._redirect.unlink(missing_ok=True)

    def answer(self, host: str, target: str) -> tuple[HTTPStatus, str, bytes]:
        """Return the answer to a GET: status, content type, content."""
        # The port is ignored: a tunnel may use another.
        if host.lower().partition(":")[0] not in _HOST_NAMES:
            return HTTPStatus.FORBIDDEN, "text/plain", b"Open this server as 127.0.0.1 or localhost.\n"
        try:
            parts = urlsplit(target)
            query = parse_qs(parts.query, max_num_fields=4)
        except ValueError:  # more fields, or a host in square brackets that is no IPv6 address
            return HTTPStatus.BAD_REQUEST, "text/plain", b"The address is invalid: ask for snapshot?seq=EVENT.\n"
        token, slash, resource = parts.path.removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
            return HTTPStatus.NOT_FOUND, "text/plain", b"Not found.\n"
        if resource == "":
            self._remove_redirect()
            with self._lock:
                return HTTPStatus.OK, "text/html; charset=utf-8", self.page
        if resource == "snapshot":
            seq = self._parse_event(query)
            if seq is not None:
                try:
                    content = self._read((seq,), lambda: build_snapshot_data(self._trace, seq))
                    return HTTPStatus.OK, "text/plain; charset=ascii", content
                except PositionError as error:  # the event lies in the compacted part of the trace
                    return HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode()
        if resource == "layers":
            begin_ns, end_ns = _parse_number(query, "begin"), _parse_number(query, "end")
            duration = self._trace.end_ns - self._trace.begin_ns
            if begin_ns is not None and end_ns is not None and begin_ns < end_ns <= max(duration, 1):
                content = self._read(
                    (begin_ns, end_ns), lambda: build_layers_data(self._trace, self._data.lines, begin_ns, end_ns)
                )
                return HTTPStatus.OK, "text/plain; charset=ascii", content
        return HTTPStatus.NOT_FOUND, "text/plain", b"Not found.\n"

    def _parse_event(self, query: dict[str, list[str]]) -> int | None:
        """Return the event `seq`, or the last event up to `ns` nanoseconds after the beginning, or None."""
        seq, ns = _parse_number(query, "seq"), _parse_number(query, "ns")
        if seq is not None:
            return seq if seq < self._trace.end_seq else None
        if ns is None or not self._trace.end_seq:
            return None
        # Times have 64 bits, and a corrupt trace may begin at the largest one: the sum would overflow.
        time_ns = min(self._trace.begin_ns + ns + 1, sys.maxsize)
        with self._lock:
            next_seq = self._trace.first_event_after_time(time_ns)
        return max(next_seq - 1, 0)

    def _read(self, key: tuple[int, ...], build: Callable[[], str]) -> bytes:
        # One replay at a time: each holds a complete allocator state in memory.
        with self._lock:
            data = self._answers.get(key)
            if data is None:
                data = self._answers[key] = build().encode("ascii")
                if len(self._answers) > _MAX_CACHED_ANSWERS:
                    self._answers.popitem(last=False)
            self._answers.move_to_end(key)
            return data


def _parse_number(query: dict[str, list[str]], name: str) -> int | None:
    """Return a field of a query that is a number of at most 18 digits, or None."""
    text = query.get(name, [""])[-1]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # On Linux, this permits a port that was just released, but no port on which another server listens.
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(*arguments)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse connections above the maximum, since each one has a thread."""
        if len(self._connections) >= MAX_CONNECTIONS:
            return False
        self._connections.add(request)
        return True

    def close_request(self, request: Any) -> None:
        """Close a connection. The base class calls this once for each, served or refused."""
        self._connections.discard(request)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: browsers close connections early."""


class _RequestReader(io.RawIOBase):
    """Reader of a connection with one deadline for the request. A socket's own timeout restarts with every byte."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read as a socket does, or raise TimeoutError, which ends the connection."""
        remaining_s = self._deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining_s)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server_version = "alloctrace"
    sys_version = ""

    def __init__(self, report: ReportServer, *arguments: Any) -> None:
        self._report = report
        super().__init__(*arguments)

    def setup(self) -> None:
        """Set a deadline for the request, which the base class reads from `rfile`."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_RequestReader(self.connection, RECEIVE_TIMEOUT_S))

    def do_GET(self) -> None:
        """Answer a GET. The base class refuses other methods."""
        try:
            status, content_type, content = self._report.answer(self.headers.get("Host", ""), self.path)
        except Exception as error:  # the page shows the error, and the server goes on
            status, content_type, content = HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n".encode()
        # `sendall`, by which the answer is written, counts the timeout from its call, not from the last byte.
        self.connection.settimeout(SEND_TIMEOUT_S)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self._send_security_headers()
        self.end_headers()
        self.wfile.write(content)

    def _send_security_headers(self) -> None:
        for name, value in (
            ("Cache-Control", "no-store"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ):
            self.send_header(name, value)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the line would contain the address, which is a secret."""
