"""Served report: accepted and rejected requests, responses, and output of the command."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from format_reader import Cursor
from hypothesis import given
from hypothesis import strategies as st
from report_servers import running_server, serve_trace
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.report.page import server as server_module
from pytorch_alloctrace.report.page.columns import unpack
from pytorch_alloctrace.report.page.data import VERSION
from pytorch_alloctrace.report.page.server import ReportServer

PROGRAM = """
import torch
import pytorch_alloctrace as alloctrace
alloctrace.enable("cpu.alloctrace", devices=["cpu"])
kept = []
for step in range(40):
    kept.append(torch.empty(1000 + step))
    torch.empty(1 << 16)
    alloctrace.step()
alloctrace.disable()
"""

BROWSER = f"""#!{sys.executable}
import json, os, re, stat, sys, urllib.request

argument = sys.argv[1]
seen = {{"argument": argument}}
if argument.startswith("file://"):
    path = argument.removeprefix("file://")
    seen["mode"] = stat.S_IMODE(os.stat(path).st_mode)
    address = re.search("url=([^>]*).>", open(path).read())[1]
    seen["address"] = address
    seen["status"] = urllib.request.urlopen(address, timeout=60).status
    seen["is_removed"] = not os.path.exists(path)
with open("browser.unfinished", "w") as file:
    json.dump(seen, file)
os.rename("browser.unfinished", "browser.json")
"""
"""Browser that follows the redirect in the file of its argument, and writes the result to browser.json."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> alloctrace.Trace:
    folder = run_source(tmp_path_factory.mktemp("serve"), PROGRAM)
    return alloctrace.load(folder / "cpu.alloctrace")


@pytest.fixture(scope="module")
def server(trace: alloctrace.Trace) -> Iterator[ReportServer]:
    with running_server(trace) as started:
        yield started


def send_request(
    server: ReportServer, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{server.port}" if host is None else host)
    connection.endheaders()
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content, {name.lower(): value for name, value in response.getheaders()}


def base_path(server: ReportServer) -> str:
    return urlsplit(server.address).path


def test_page_has_security_headers(server: ReportServer) -> None:
    status, content, headers = send_request(server, base_path(server))

    assert status == 200 and b"<!DOCTYPE html>" in content and b"connect-src 'self'" in content
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost", 200), ("LOCALHOST:80", 200), ("127.0.0.1:1", 200), ("", 403), ("evil.example:80", 403)),
        *(("127.0.0.1.evil.example", 403), ("localhost.evil.example:1", 403), ("0.0.0.0", 403), ("::1", 403)),
    ],
)
def test_request_is_forbidden_unless_host_is_local(server: ReportServer, host: str, status: int) -> None:
    """DNS rebinding: the browser sends the request to this machine as evil.example."""
    response_status, content, _ = send_request(server, base_path(server), host=host)
    assert response_status == status and (b"DOCTYPE" in content) == (status == 200)


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/wrong/", "/{token}", "/{token}x/", "/{short}/", "/{token}/../{token}/", "/{token}//", "/{token}\x7f/"),
        *("/{token}/cpu.alloctrace", "/{token}/../../../../etc/passwd", "/{token}/..%2f..%2f..%2fetc%2fpasswd"),
        *("/{token}/snapshot/../../etc/passwd", "/{token}//etc/passwd", "/{token}/file:///etc/passwd"),
        *("/{token}/snapshot", "/{token}/snapshot?seq=", "/{token}/snapshot?seq=-1", "/{token}/snapshot?seq=1.5"),
        *("/{token}/snapshot?seq=99999999999999999999999999", "/{token}/snapshot?seq=1000000"),
        *("/{token}/layers", "/{token}/layers?begin=5&end=5", "/{token}/layers?begin=0&end=999999999999999999"),
        *("/{token}/layers?begin=-1&end=5", "/{token}/layers?begin=0&end=x", "/{token}/layers?end=5"),
        *("/{token}/snapshot?seq=" + quote("١٢"), "/{token}/snapshot?ns=abc", "/{token}/snapshot?path=/etc/passwd"),
    ],
)
def test_other_path_is_not_found(server: ReportServer, path: str) -> None:
    token = base_path(server).strip("/")
    path = path.replace("{token}", token).replace("{short}", token[:-1])
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
    response = b"".join(iter(lambda: connection.recv(65536), b""))
    connection.close()

    assert response.split(b" ", 2)[1] == b"404", response[:200]
    assert b"root:" not in response and b"DOCTYPE" not in response and token.encode() not in response


@pytest.mark.parametrize("method", ["HEAD", "POST", "OPTIONS", "XYZ"])
def test_other_methods_are_not_implemented(server: ReportServer, method: str) -> None:
    status, content, headers = send_request(server, base_path(server), method=method)
    assert status == 501 and base_path(server).encode() not in content
    assert not [name for name in headers if name.startswith("access-control")]


def test_malformed_requests_do_not_stop_server(server: ReportServer) -> None:
    for data in (
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\xff" * 1000 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G" * 100_000,
        b"",
    ):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    assert send_request(server, base_path(server))[0] == 200


def test_server_listens_only_on_loopback_address(server: ReportServer) -> None:
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in {*addresses, "127.0.0.2"} - {"127.0.0.1"}:
        with pytest.raises(OSError):
            socket.create_connection((str(address), server.port), timeout=5)


def test_snapshot_matches_trace(server: ReportServer, trace: alloctrace.Trace) -> None:
    end = trace._recorded.end_seq
    for seq in (0, 7, end // 2, end - 1):
        status, content, _ = send_request(server, f"{base_path(server)}snapshot?seq={seq}")
        assert status == 200
        manifest, _ = unpack(content.decode())
        assert (manifest["version"], manifest["seq"]) == (VERSION, seq)
        assert manifest["time"] == max(trace._recorded.time_ns(seq) - trace.begin_ns, 0)
        (device,) = manifest["devices"]
        live_bytes = sum(nbytes for _, nbytes, _ in device["maps"]["groups"]["phase"].get("0", []))
        assert live_bytes == trace.live(seq)["requested_bytes"].sum()


def test_layers_of_part_match_trace(server: ReportServer, trace: alloctrace.Trace) -> None:
    """Finer than those of the page: each interval of the part holds at most a few events."""
    duration = trace._recorded.end_ns - trace.begin_ns
    times = trace.events(columns=["seq", "time_ns"])["time_ns"] - trace.begin_ns
    begin, end = int(times[40]), int(times[80])
    status, content, _ = send_request(server, f"{base_path(server)}layers?begin={begin}&end={end}")
    manifest, columns = unpack(content.decode())
    seqs = read_column(columns, manifest["devices"]["cpu"]["seq"])
    lines = [read_column(columns, layer[0]) for layer in manifest["devices"]["cpu"]["lines"] if layer]

    assert status == 200 and (manifest["begin"], manifest["end"]) == (begin, end)
    assert len({*seqs}) > 10 and begin < end < duration
    _, content, _ = send_request(server, f"{base_path(server)}layers?begin=0&end=1")
    manifest, _ = unpack(content.decode())
    assert [*manifest["devices"]] == ["cpu"], "a device has layers even before its first event"
    for row in (0, 300, len(seqs) - 1):
        live_bytes = trace.usage(seqs[row])["live_bytes"].sum()
        assert sum(line[row] for line in lines) == live_bytes


def read_column(columns: bytes, reference: list[int]) -> list[int]:
    begin, count, is_difference = reference
    numbers = Cursor(columns[begin:])
    values = [numbers.signed() for _ in range(count)]
    return [*itertools.accumulate(values)] if is_difference else values


def test_time_selects_last_event_up_to_it(server: ReportServer, trace: alloctrace.Trace) -> None:
    times = trace.events(columns=["seq", "time_ns"])
    for row in (0, 5, 50, len(times) - 1):
        at = int(times["time_ns"][row])
        last = int(times[times["time_ns"] <= at]["seq"].max())
        for ns, expected in ((at - trace.begin_ns, last), (10**17, trace._recorded.end_seq - 1)):
            _, content, _ = send_request(server, f"{base_path(server)}snapshot?ns={max(ns, 0)}")
            assert unpack(content.decode())[0]["seq"] == expected


def test_each_server_has_its_own_token(trace: alloctrace.Trace) -> None:
    first, second = ReportServer(trace._recorded), ReportServer(trace._recorded)

    assert len(base_path(first)) > 30 and base_path(first) != base_path(second)
    with pytest.raises(alloctrace.ReportError, match=f"port {first.port} cannot be used"):
        ReportServer(trace._recorded, first.port)
    first.release_port()
    second.release_port()


def test_command_serves_until_interrupted(trace: alloctrace.Trace, tmp_path: Path) -> None:
    with serve_trace(tmp_path, "serve", trace.path) as address:
        assert address.hostname == "127.0.0.1" and address.port is not None
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=600)
        connection.request("GET", address.path)
        assert connection.getresponse().status == 200


def wait_for(path: Path, pattern: str) -> Path:
    """Return the file in a folder that matches a pattern, once there is one."""
    for _ in range(600):
        for match in path.glob(pattern):
            return match
        time.sleep(0.1)
    raise AssertionError(f"no {pattern} in {path}")


def test_open_gives_browser_a_private_file_and_not_the_token(trace: alloctrace.Trace, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(BROWSER)
    browser.chmod(0o700)

    with serve_trace(tmp_path, "serve", trace.path, "--open", BROWSER=f"{browser} %s", TMPDIR=str(tmp_path)) as address:
        request = json.loads(wait_for(tmp_path, "browser.json").read_text())

    assert address.path.strip("/") not in request["argument"]
    assert request["address"] == address.geturl()
    assert (request["mode"], request["status"], request["is_removed"]) == (0o600, 200, True)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP])
def test_redirect_file_is_removed_when_server_ends_before_browser_asks(
    trace: alloctrace.Trace, tmp_path: Path, stop: signal.Signals
) -> None:
    with serve_trace(tmp_path, "serve", trace.path, "--open", stop=stop, TMPDIR=str(tmp_path)):
        redirect = wait_for(tmp_path, "alloctrace-*.html")

    assert not redirect.exists()


def connect(server: ReportServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


@pytest.mark.parametrize("received", [b"", b"GET / HTTP/1.0\r\nHost: localhost\r\nX: "], ids=["line", "headers"])
def test_client_that_sends_byte_by_byte_is_closed_at_deadline(
    server: ReportServer, monkeypatch: pytest.MonkeyPatch, received: bytes
) -> None:
    monkeypatch.setattr(server_module, "RECEIVE_TIMEOUT_S", 0.5)

    with connect(server) as connection:
        started = time.monotonic()
        connection.settimeout(0.1)  # between two bytes
        connection.sendall(received)
        is_closed = False
        while not is_closed and time.monotonic() < started + 10:
            try:
                connection.sendall(b"x")
                is_closed = connection.recv(1) == b""
            except TimeoutError:
                pass
            except ConnectionError:
                is_closed = True

    assert is_closed


def test_client_that_reads_slowly_is_closed_at_deadline(
    trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SEND_TIMEOUT_S", 1)
    monkeypatch.setattr(ReportServer, "page", b"x" * (32 << 20))  # more than the buffers of a socket

    with running_server(trace) as server, connect(server) as connection:
        connection.sendall(f"GET {base_path(server)} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        for _ in range(30):
            assert connection.recv(1)
            time.sleep(0.1)
        received = 30
        with contextlib.suppress(ConnectionError):
            received += sum(map(len, iter(lambda: connection.recv(1 << 20), b"")))

    assert received < 32 << 20


def test_connections_above_the_maximum_are_closed(server: ReportServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 2)

    with connect(server), connect(server), pytest.raises(ConnectionError):
        send_request(server, base_path(server))
    for _ in range(100):  # until the server has noticed that both are closed
        with contextlib.suppress(ConnectionError):
            status, _, _ = send_request(server, base_path(server))
            break
        time.sleep(0.1)

    assert status == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        *(
            ("/{token}/snapshot?a=1&b=2&c=3&d=4&seq=5", 400),
            ("/{token}/snapshot?&&&&", 400),
            ("/{token}/?1&2&3&4&5", 400),
        ),
        *(("http://[/", 400), ("http://[x]/{token}/", 400), ("//[", 404), ("http://localhost/{token}/", 200)),
        *(
            ("/{token}/snapshot?seq=1&seq=2", 200),
            ("/{token}/snapshot?seq=2&ns=%ff", 200),
            ("/{token}/snapshot?%ff=%fe", 404),
        ),
        *(("/{token}/snapshot?seq=%ff", 404), ("/{token}/snapshot?seq=%00", 404), ("/{token}/snapshot?seq=&ns=", 404)),
        *(
            ("/{token}/snapshot?ns=-1", 404),
            ("/{token}/snapshot?ns=" + "9" * 18, 200),
            ("/{token}/snapshot?ns=" + "9" * 60, 404),
        ),
        *(("/%ff/", 404), ("/\xff/", 404), ("/" + "x" * 60_000, 404), ("/" + "x" * 70_000, 414)),
    ],
)
def test_malformed_target_has_status_and_one_sentence(server: ReportServer, target: str, status: int) -> None:
    target = target.replace("{token}", base_path(server).strip("/"))

    with connect(server) as connection:
        connection.sendall(f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode("latin-1"))
        response = b""
        with contextlib.suppress(ConnectionError):  # the server does not read the rest of a line that is too long
            for part in iter(lambda: connection.recv(65536), b""):
                response += part

    head, _, content = response.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert status != 400 or content == b"The address is invalid: ask for snapshot?seq=EVENT.\n"


@pytest.mark.parametrize("host", ["\xff", "[", "[::1]:1", "x" * 60_000, "localhost\xff", "%00", ":", " "])
def test_malformed_host_is_forbidden(server: ReportServer, host: str) -> None:
    assert send_request(server, base_path(server), host=host)[0] == 403


@given(
    host=st.sampled_from(["localhost", "127.0.0.1:80", ""]) | st.text(st.characters(max_codepoint=255)),
    before=st.sampled_from(["", "/", "//", "http://localhost", "http://["]),
    query=st.text(st.sampled_from("seqn=&;%0129a-+.?#/\xff[] "), max_size=30),
)
def test_no_request_is_an_internal_error(server: ReportServer, host: str, before: str, query: str) -> None:
    status, _, _ = server.answer(host, f"{before}{base_path(server)}snapshot?{query}")

    assert status in (200, 400, 403, 404)


def test_compacted_event_is_refused_in_one_sentence(trace: alloctrace.Trace, tmp_path: Path) -> None:
    compacted = alloctrace.compact(trace.path, tmp_path / "compacted.alloctrace", until=100)

    with running_server(alloctrace.load(compacted.trace)) as server:
        status, content, _ = send_request(server, f"{base_path(server)}snapshot?seq=5")

    assert status == 400 and content.startswith(b"the trace is compacted up to event 100") and content.count(b"\n") == 1


def test_time_beyond_64_bits_is_the_last_event(
    server: ReportServer, trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordedTrace, "begin_ns", sys.maxsize)

    event = server._parse_event({"ns": ["5"]})

    assert event == trace._recorded.end_seq - 1
