"""``python -m pytorch_alloctrace run ...``: see recording/run.py."""

from __future__ import annotations

import sys

USAGE = """\
usage: python -m pytorch_alloctrace run [options] script.py [arguments]
       python -m pytorch_alloctrace run [options] -m module [arguments]
           records a program, unchanged; `run --help` names the options
       python -m pytorch_alloctrace.analyze TRACE
           says what happened to the memory
"""


def main(arguments: list[str]) -> int:
    """Dispatches on the verb and returns the exit status. What the program that is run raises goes through."""
    if arguments and arguments[0] == "run":
        from .recording.run import run

        return run(arguments[1:])
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    print(USAGE, end="", file=sys.stderr)
    return 2


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Nothing is raised where the program came to its end: a debugger or `python -i` sees what it would see without us.
    if status:
        sys.exit(status)
