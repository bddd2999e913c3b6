"""The command: records a program, or says from a trace what happened to the memory.

``alloctrace``, ``python -m pytorch_alloctrace`` and ``python -m pytorch_alloctrace.analyze`` are the same.
"""

from __future__ import annotations

import sys

from . import command


def main(arguments: list[str]) -> int:
    """Runs a verb; returns the exit status (see `analyze.verb.Exit`). What a recorded program raises goes through."""
    # Imported on demand: a recorded program must not pay for what only reading a trace needs.
    if arguments[:1] == ["run"]:
        from .recording.run import run

        return run(arguments[1:])
    if arguments[:1] == ["build"]:
        from .recording.loading import build_command

        return build_command(arguments[1:])
    try:
        if arguments[:1] == ["cost"]:
            from .cost.command import cost

            command.raise_interrupts()
            return cost(arguments[1:])
        from .analyze.command_line import main as analyze

        command.raise_interrupts()
        return analyze(arguments)
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
