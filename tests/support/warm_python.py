"""Servers that have imported torch, and fork to run the programs of tests.

A server is a Python process that waits for programs. It forks a child per program, which adopts the program's folder,
environment, arguments and standard streams, and runs its script, module or text as `__main__`. Differences from a new
process: sys.modules contains the server's imports; the outermost frame is in "<frozen warm_python>", which counts as
library code; the parent is the server; all children share hash seeds and library addresses; garbage collections and
gc.get_objects() skip the objects of the server's modules (gc.freeze); and if the program ends without an exception,
its modules are not destroyed after the exit handlers. The last two would take longer than most programs.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.util
import json
import marshal
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

AFTER_START = (
    *("ALLOCTRACE", "PYTEST_CURRENT_TEST", "RANK", "WORLD_SIZE", "LOCAL_RANK", "COLUMNS", "PATH", "NO_COLOR"),
    *("SIMCUDA_", "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    *("PYTORCH_NO_CUDA_MEMORY_CACHING", "CXX", "TMPDIR", "NVML_FAILS", "PYTHONPATH", "HOME", "XDG_CACHE_HOME"),
)
"""Prefixes of variables that are first read after the program begins; exception: allocator settings with "backend:"."""
SERVED_SETTINGS = {"OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
"""Variables that torch reads when it is imported: each combination of values has a server."""
MAX_SERVERS = 4
NUMBER = struct.Struct("<q")
FRAME_NAME = "<frozen warm_python>"
SUPPORT = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(SUPPORT))

SERVER = """
import gc, sys, warm_python
import torch, torch._dynamo
gc.freeze()
exec(*warm_python.wait_for_program(int(sys.argv[1])))
warm_python.end_program()
"""


# The server's side


def wait_for_program(socket_number: int) -> tuple[types.CodeType, dict[str, Any]]:
    """Serve requests; in each child, return the program's code and namespace."""
    requests = socket.socket(fileno=socket_number)
    while True:
        head, descriptors, _, _ = socket.recv_fds(requests, NUMBER.size, 3)
        if not head:  # the client has ended
            os._exit(0)
        request = json.loads(requests.recv(NUMBER.unpack(head)[0], socket.MSG_WAITALL))
        child = os.fork()
        if child == 0:
            requests.close()
            return _set_up_program(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.sendall(NUMBER.pack(child))
        _, status = os.waitpid(child, 0)
        requests.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _set_up_program(request: dict[str, Any], descriptors: list[int]) -> tuple[types.CodeType, dict[str, Any]]:
    """Set up this process like a new one for the program; return the program's code and namespace."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.update(request["environment"])  # in addition to the launcher's variables
    tempfile.tempdir = None  # cached from the server's TMPDIR
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores SIGINT
    folders = [os.path.abspath(folder) for folder in os.environ["PYTHONPATH"].split(os.pathsep)]
    sys.path[1:] = [*folders, *(folder for folder in sys.path[1:] if folder not in (SUPPORT, ROOT, *folders))]
    sys.excepthook = _print_program_error
    return _set_up_main(request["arguments"])


def _set_up_main(arguments: list[str]) -> tuple[types.CodeType, dict[str, Any]]:
    """Return the code and namespace of `python ARGUMENTS`: of a script, a module (-m) or a text (-c)."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    module.__annotations__ = {}
    sys.modules["__main__"] = module
    if arguments[0] == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        sys.path[0] = ""
        return compile(arguments[1], "<string>", "exec", dont_inherit=True), module.__dict__
    if arguments[0] == "-m":
        sys.path[0] = os.getcwd()
        _, spec, code = runpy._get_module_details(arguments[1])  # type: ignore[attr-defined]
        module.__spec__, module.__package__, module.__loader__ = spec, spec.parent, spec.loader
        module.__file__ = spec.origin
        sys.argv[:] = [spec.origin, *arguments[2:]]
        return code, module.__dict__
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
    module.__file__ = path = os.path.abspath(arguments[0])
    module.__loader__ = SourceFileLoader("__main__", path)
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True), module.__dict__


def end_program() -> None:
    """End this process like the interpreter, up to and including the exit handlers."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream and not stream.closed:
            stream.flush()
    os._exit(0)


def _print_program_error(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Print a traceback without the frames of the server."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (FRAME_NAME, __file__):
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


# The client's side


class Server:
    """A process that has imported torch and waits for programs."""

    def __init__(self, launcher: list[str], environment: dict[str, str]) -> None:
        self.lock = threading.Lock()
        self._requests, theirs = socket.socketpair()
        # Compiled under a file name that counts as library code.
        self._folder = tempfile.TemporaryDirectory()
        script = Path(self._folder.name, "warm_python_server.pyc")
        code = marshal.dumps(compile(SERVER, FRAME_NAME, "exec"))
        script.write_bytes(importlib.util.MAGIC_NUMBER + bytes(12) + code)
        folders = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self._process = subprocess.Popen(
            [*launcher, sys.executable, str(script), str(theirs.fileno())],
            env={**environment, **folders, "PYTHONPATH": os.pathsep.join((SUPPORT, ROOT))},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # a pipe, like a program's; the server prints nothing
        )
        theirs.close()
        atexit.register(self.stop)

    def run(
        self, directory: Path, arguments: list[str], environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, or kill it on an error, such as TimeoutExpired. The caller must hold `lock`."""
        request = {
            "directory": str(directory),
            "arguments": arguments,
            "environment": {name: text for name, text in environment.items() if not _is_read_at_start(name, text)},
        }
        content = json.dumps(request).encode()
        (stdout, their_stdout), (stderr, their_stderr) = os.pipe(), os.pipe()
        with open(os.devnull, "rb") as stdin:
            socket.send_fds(self._requests, [NUMBER.pack(len(content))], [stdin.fileno(), their_stdout, their_stderr])
        os.close(their_stdout)
        os.close(their_stderr)
        self._requests.sendall(content)
        child = self._receive_number()
        try:
            output, errors = _read_to_end((stdout, stderr), timeout)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):  # another process may have the pipes open
                os.kill(child, signal.SIGKILL)
            if isinstance(error, TimeoutError):
                raise subprocess.TimeoutExpired(arguments, timeout) from None
            raise
        return subprocess.CompletedProcess(arguments, self._receive_number(), output.decode(), errors.decode())

    def stop(self) -> None:
        self._requests.close()
        self._process.kill()
        self._process.wait()

    def _receive_number(self) -> int:
        content = self._requests.recv(NUMBER.size, socket.MSG_WAITALL)
        if not content:
            raise RuntimeError("the server of warm programs has ended")
        return int(NUMBER.unpack(content)[0])


def _read_to_end(pipes: tuple[int, int], timeout: float) -> tuple[bytes, bytes]:
    """Read and close the pipes once all writers have closed them. Raise TimeoutError if that takes too long."""
    end = time.monotonic() + timeout
    content = dict.fromkeys(pipes, b"")
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as closing:
        for pipe in pipes:
            closing.callback(os.close, pipe)
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                content[key.fd] += part
                if not part:
                    selector.unregister(key.fd)
    return content[pipes[0]], content[pipes[1]]


_servers: dict[tuple[str, ...], Server] = {}
_choosing = threading.Lock()


def _is_read_at_start(name: str, value: str) -> bool:
    return not name.startswith(AFTER_START) or "backend:" in value


def run_warm(
    directory: Path, launcher: list[str], arguments: list[str], environment: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str] | None:
    """Run `launcher python arguments` in a fork of a server. Return None if the server is busy, or if the process must
    start with variables that the tests do not have."""
    at_start = {name: value for name, value in environment.items() if _is_read_at_start(name, value)}
    others = at_start.items() - os.environ.items()
    if "env" in launcher or not {name for name, _ in others} <= SERVED_SETTINGS:
        return None
    key = (*launcher, *sorted(f"{name}={value}" for name, value in at_start.items()))
    with _choosing:
        server = _servers.pop(key, None)
        if server is None:
            idle = next((other for other, server in _servers.items() if not server.lock.locked()), None)
            if len(_servers) >= MAX_SERVERS and idle is not None:
                _servers.pop(idle).stop()  # least recently used
            server = Server(launcher, at_start)
        _servers[key] = server
        if not server.lock.acquire(blocking=False):
            return None
    try:
        return server.run(directory, arguments, environment, timeout)
    except BaseException:
        # The server's next answer would belong to this program.
        with _choosing:
            if _servers.get(key) is server:
                del _servers[key]
        server.stop()
        raise
    finally:
        server.lock.release()
