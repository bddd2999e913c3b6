"""The command: records a program, or says from a trace what happened to the memory.

``alloctrace``, ``python -m pytorch_alloctrace`` and ``python -m pytorch_alloctrace.analyze`` are the same.
"""

from __future__ import annotations

import sys

from . import command
from .errors import AlloctraceError


def main(arguments: list[str]) -> int:
    """Run a command and return its exit status. Errors and interrupts of a recorded program go through."""
    from .parser import PROGRAM, parse

    with command.quiet_pipe():
        chosen, options = parse(arguments)
    if arguments[0] == "run":
        return chosen.execute(options)
    try:
        command.raise_interrupts()
        with command.quiet_pipe():
            return chosen.execute(options)
    except AlloctraceError as error:
        from .report.site_names import printable

        print(f"{PROGRAM}: error: {printable(str(error))}", file=sys.stderr)
        return command.BAD_INPUT
    except KeyboardInterrupt:
        command.say_interrupted()
        return command.INTERRUPTED
    finally:
        if command.is_running():
            command.ignore_interrupts()


def script() -> int:
    """The entry point of the installed script."""
    arguments = sys.argv[1:]  # `run` gives the program its own
    status = main(arguments)
    if arguments[:1] != ["run"]:  # a recorded program ends as it would without us
        command.end_at_once(status)
    return status


if __name__ == "__main__":
    status = script()
    # Nothing is raised where the program came to its end: a debugger or `python -i` sees what it would see without us.
    if status:
        sys.exit(status)
