"""The page, served to the browser of this machine: it can ask for the memory at any event of the trace.

Who may ask: only what connects to this machine's own address, knows the token in the page's address, and has come by
the name of this machine. The name is looked at because a page from elsewhere could have its own name lead here (DNS
rebinding); the token, because any other page, and any user of this machine, can send requests here. No header allows
another page to read an answer. Nothing is taken from a path but the token and one word: no file can be asked for.
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
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ...errors import PositionError, ReportError
from ...reading.recorded import RecordedTrace
from .data import moment_data, page_data
from .report import document

_ADDRESS = "127.0.0.1"
_NAMES = (_ADDRESS, "localhost")
_KEPT = 64
"""Moments that are kept for the next time."""
MAX_CONNECTIONS = 32
"""Maximum number of connections at once. A browser opens about six."""
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
    """Serves the page of a trace until it is closed. port: 0 for any that is free. Raises ReportError for one that is
    taken."""

    def __init__(self, trace: RecordedTrace, port: int = 0) -> None:
        self._trace = trace
        self._token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._moments: OrderedDict[int, bytes] = OrderedDict()
        self._redirect: Path | None = None
        try:
            self._server = _Server((_ADDRESS, port), functools.partial(_Handler, self))
        except OSError as error:
            raise ReportError(f"port {port} cannot be used: {error.strerror or error}; give another, or none") from None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """What to open in the browser. Whoever knows it sees the trace."""
        return f"http://{_ADDRESS}:{self.port}/{self._token}/"

    @functools.cached_property
    def page(self) -> bytes:
        """The page."""
        title, data = page_data(self._trace, live=True)
        return document(title, data, live=True).encode()

    def write_redirect(self) -> Path:
        """Write a file that leads a browser to `address`, and return its path.

        Every user of the machine can read a browser's command line, but only this user can read the file (mode 0600).
        The server removes the file when the page is first requested, or in `close` or `let_go`.

        Raises:
            ReportError: The folder for temporary files cannot be written to.
        """
        try:
            # Named before it is created, unlike by `mkstemp`: a signal between the two would leave the file.
            self._redirect = Path(tempfile.gettempdir(), f"alloctrace-{secrets.token_hex(8)}.html")
            with open(self._redirect, "x", opener=lambda path, flags: os.open(path, flags, mode=0o600)) as file:
                file.write(_REDIRECT.format(address=self.address))
        except OSError as error:
            reason = error.strerror or error
            raise ReportError(f"no temporary file for --open: {reason}; set TMPDIR, or omit --open") from None
        return self._redirect

    def serve(self) -> None:
        """Answers until `close` is called from another thread, or KeyboardInterrupt comes."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Ends `serve`, if it runs, and lets go of the port."""
        self._server.shutdown()
        self._server.server_close()
        self._remove_redirect()

    def let_go(self) -> None:
        """Lets go of the port, once `serve` has ended."""
        self._server.server_close()
        self._remove_redirect()
        # An answer that is being made ends first: its thread would be cut off where it waits for Python, which aborts.
        with self._lock:
            pass

    def _remove_redirect(self) -> None:
        if self._redirect is not None:
            self._redirect.unlink(missing_ok=True)

    def answer(self, host: str, target: str) -> tuple[HTTPStatus, str, bytes]:
        """What a GET is answered with: status, type, content."""
        # Whatever the port: that of a tunnel may be another.
        if host.lower().partition(":")[0] not in _NAMES:
            return HTTPStatus.FORBIDDEN, "text/plain", b"This server answers to its own name alone.\n"
        try:
            parts = urlsplit(target)
            query = parse_qs(parts.query, max_num_fields=4)
        except ValueError:  # more fields, or a host in square brackets that is no IPv6 address
            return HTTPStatus.BAD_REQUEST, "text/plain", b"The address is invalid: ask for moment?seq=EVENT.\n"
        token, slash, word = parts.path.removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
            return HTTPStatus.NOT_FOUND, "text/plain", b"Not found.\n"
        if word == "":
            self._remove_redirect()
            with self._lock:
                return HTTPStatus.OK, "text/html; charset=utf-8", self.page
        if word == "moment":
            seq = self._asked_event(query)
            if seq is not None:
                try:
                    return HTTPStatus.OK, "text/plain; charset=ascii", self._moment(seq)
                except PositionError as error:  # the trace was compacted: the event is only in its sums
                    return HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode()
        return HTTPStatus.NOT_FOUND, "text/plain", b"Not found.\n"

    def _asked_event(self, query: dict[str, list[str]]) -> int | None:
        """The event that a page asks for: by its number, or the last one up to a time (ns since the beginning)."""
        for name in ("seq", "ns"):
            text = query.get(name, [""])[-1]
            if not (text.isascii() and text.isdecimal() and len(text) < 19):
                continue
            if name == "seq":
                return int(text) if int(text) < self._trace.end_seq else None
            # The replay takes 64 bits; a corrupt trace may begin at the last nanosecond that they hold.
            time_ns = min(self._trace.begin_ns + int(text) + 1, sys.maxsize)
            with self._lock:
                after = self._trace.first_event_after_time(time_ns)
            return max(after - 1, 0) if self._trace.end_seq else None
        return None

    def _moment(self, seq: int) -> bytes:
        # One at a time: the replay goes to a moment with the memory of a whole state.
        with self._lock:
            known = self._moments.get(seq)
            if known is None:
                known = self._moments[seq] = moment_data(self._trace, seq).encode("ascii")
                if len(self._moments) > _KEPT:
                    self._moments.popitem(last=False)
            self._moments.move_to_end(seq)
            return known


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # On Linux this would not share a port with another server, but take one that was just let go: as wanted.
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(*arguments)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether a new connection is served: each has a thread. A connection above the maximum is closed."""
        if len(self._connections) >= MAX_CONNECTIONS:
            return False
        self._connections.add(request)
        return True

    def close_request(self, request: Any) -> None:
        """Close a connection. The base class calls this once for each, served or refused."""
        self._connections.discard(request)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is nothing to be said."""


class _RequestReader(io.RawIOBase):
    """Bytes from a connection, until a deadline that no byte extends, unlike a socket's own timeout."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + timeout_s

    def readable(self) -> bool:
        """Return True, which BufferedReader requires."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer and return the number of bytes. Raises TimeoutError, which ends the connection."""
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
        """The only method: others are refused by the base class."""
        try:
            status, kind, content = self._report.answer(self.headers.get("Host", ""), self.path)
        except Exception as error:  # whatever it is, it is said in the page, and the server goes on
            status, kind, content = HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n".encode()
        # `sendall`, by which the answer is written, counts the timeout from its call, not from the last byte.
        self.connection.settimeout(SEND_TIMEOUT_S)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self._send_rules()
        self.end_headers()
        self.wfile.write(content)

    def _send_rules(self) -> None:
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
        """Says nothing: the address, which is a secret, would be in it."""
