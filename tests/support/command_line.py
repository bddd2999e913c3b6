"""Runs `python -m pytorch_alloctrace.analyze` many times, without importing everything each time.

Importing pandas and rich takes a second, the commands of most tests far less. So one process a test process imports the
command line and forks for each command: what a command does stays in its own process, as a user runs it. The tests of
the command itself (encodings, signals, pipes, what it imports) start it as a user does.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from running import program_environment
from small_reports import make_reports_small

SERVER = "import command_line; command_line.serve()"


def run_command(folder: Path, arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What the command prints to a pipe, run in a folder; `environment` is added to that of a program."""
    with tempfile.TemporaryDirectory() as outputs:
        request = {
            "folder": str(folder),
            "arguments": arguments,
            "environment": program_environment(**environment),
            "outputs": outputs,
        }
        server = _server()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        out, error = (Path(outputs, name).read_bytes().decode() for name in ("out", "error"))
    return subprocess.CompletedProcess(arguments, status, out, error)


@functools.cache
def _server() -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**program_environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        assert started.stdin is not None
        started.stdin.close()
        started.wait()

    atexit.register(end)
    return started


def serve() -> None:
    """Runs the commands that standard input asks for, a line of JSON each, and answers with their exit statuses."""
    import pytorch_alloctrace.__main__ as command
    from pytorch_alloctrace.analyze import command_line  # noqa: F401
    from pytorch_alloctrace.analyze.verbs import VERBS

    make_reports_small()
    # What each command would import for itself, all together.
    list(VERBS.values())
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(command.main, **request)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(main, folder: str, arguments: list[str], environment: dict[str, str], outputs: str) -> NoReturn:  # type: ignore[no-untyped-def]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["analyze", *arguments]
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(Path(outputs, name), os.O_WRONLY | os.O_CREAT), number)
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    status: object = 1
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)
