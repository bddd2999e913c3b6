"""Entry point of the command `alloctrace`.

``alloctrace``, ``python -m pytorch_alloctrace`` and ``python -m pytorch_alloctrace.analyze`` are the same.
"""

from __future__ import annotations

import sys

from . import command
from .errors import AlloctraceError


def main(arguments: list[str]) -> int:
    """Run a command and return its exit status. Errors and interrupts of a recorded program propagate."""
    from .parser import PROGRAM, parse

    with command.QuietPipe():
        selected_command, options = parse(arguments)
    if arguments[0] == "run":
        return selected_command.execute(options)
    try:
        command.raise_interrupts()
        with command.QuietPipe():
            return selected_command.execute(options)
    except AlloctraceError as error:
        from .report.site_names import printable

        print(f"{PROGRAM}: error: {printable(str(error))}", file=sys.stderr)
        return command.BAD_INPUT
    except KeyboardInterrupt:
        command.print_interrupted()
        return command.INTERRUPTED
    finally:
        if command.is_running():
            command.ignore_interrupts()


def script() -> int:
    """Run the command of the installed script, and return its exit status."""
    arguments = sys.argv[1:]  # before `main`: the command `run` changes sys.argv
    status = main(arguments)
    if arguments[:1] != ["run"]:  # a recorded program must exit as it would without us
        command.exit_now(status)
    return status


if __name__ == "__main__":
    status = script()
    # No SystemExit on success: a debugger or `python -i` must find the same state as without us.
    if status:
        sys.exit(status)
