"""The verbs in words: what each shows, the options it takes, and examples. What it does is in `verbs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_CODE = {"user-path": "a file or folder whose code counts as your own although it is installed (repeatable)"}
_DEVICE = {"device": 'only this device, such as "cuda:0"'}
_CSV = {"csv": "print the table as CSV, all sizes in bytes"}
_STACKS = {"all-frames": "show whole stacks, frames of libraries too, innermost first; in JSON as `frames`"}
COMMON = {
    "json": "print JSON, all sizes in bytes",
    **_CSV,
    "top": "rows in each table (0: all)",
    **_DEVICE,
    **_CODE,
    "spool": "the spool of a killed recording, if it was moved away from the trace",
    "width": "width of the text (default: the terminal's; 80 when piped)",
}
"""Options that nearly all verbs take."""
ALWAYS = ("json", "spool", "width")
"""Those that all take."""
MOMENTS = """\
  4711                  event 4711 (after it)
  step:12               the end of step 12
  mark:NAME             the mark of that name
  peak, peak:reserved   when the most was allocated, reserved
  12.5s                 so long after the recording began
  end                   the end of the trace"""
"""How --at, --since and --until are written."""


@dataclass(frozen=True)
class Verb:
    """What a verb does."""

    line: str
    """In one line."""
    text: str
    """In two sentences."""
    options: Mapping[str, str]
    """That it takes beside those of ALWAYS: name without dashes, and what it does here."""
    examples: tuple[tuple[str, str], ...]
    """What follows the program's name, and what it shows."""
    traces: str = "TRACE"


VERDICT = Verb(
    "(or no verb) what is the matter, peak, end, and growth",
    "Says first what is the matter: requests that ran out of memory, leaks, memory that is held in vain. Then what the "
    "peak consisted of by line of your code, what was live at the end, and the growth.",
    {
        "top": "lines in each table (default: 5; 0: all)",
        "device": 'only this device, such as "cuda:0" (repeatable)',
        **_CODE,
        **_STACKS,
    },
    (("run.alloctrace", "the verdict"), ("run.alloctrace --json --top 0 > verdict.json", "the same for programs")),
)
"""Without a verb, or with this one:"""
DIAGNOSE = "diagnose"
VERBS = {
    "leaks": Verb(
        "what leaks, how fast, and the line to look at",
        "Shows the lines of which blocks are made again and again and never freed, and the buffers that are replaced "
        "by ever larger ones. The whole run is judged, or some of its steps, most certain and fastest leaks first.",
        {
            **_CSV,
            "top": "so many findings (default: all)",
            "since": "judge what happened after this moment; what was before is warm-up",
            "until": "judge what happened up to this moment (default: end)",
            **_DEVICE,
            **_CODE,
            **_STACKS,
            "fail": "exit status 1 when there is one, for use in CI",
        },
        (
            ("leaks run.alloctrace", "each leak with its rate, how certain it is, and when the device is full"),
            ("leaks run.alloctrace --fail", "the same; exit status 1 when there is one"),
            ("leaks run.alloctrace --since step:10", "what leaks once ten steps have gone by"),
        ),
    ),
    "peak": Verb(
        "what the memory consisted of when it was at its highest",
        "Shows what was live when the most was allocated (or reserved, or at another moment). Rows are lines of your "
        "code, each with its share; below them the same by phase of the step and by age.",
        {
            **_CSV,
            "top": "rows of the table (default: 10; 0: all)",
            "at": "what to show: peak (default), peak:reserved, or any other moment",
            "since": "the peak after this moment (default: the beginning of the trace)",
            "until": "the peak up to this moment (default: end)",
            "by": "what the rows are: lines (default), stacks, functions, files, phases of the step, ages",
            "device": "only this device (default: the one with the highest peak)",
            **_CODE,
            **_STACKS,
        },
        (
            ("peak run.alloctrace --by function", "which functions hold the peak"),
            ("peak run.alloctrace --at step:10", "what was live when step 10 ended"),
            ("peak run.alloctrace --since step:10 --until step:20", "what the memory was at its highest in ten steps"),
            ("peak run.alloctrace --top 3 --all-frames", "the three lines that hold most, each with its whole stack"),
        ),
    ),
    "diff": Verb(
        "what changed between two runs, or two moments of one",
        "Compares what two runs of a program hold, or what one holds at two moments, the largest change first. Lines "
        "that moved between the runs, or were edited, are matched.",
        {
            **_CSV,
            "top": "rows of the table (default: 10; 0: all)",
            "at": "of two runs: the moment of each to compare (default: peak)",
            "since": "of one run: the moment before",
            "until": "of one run: the moment after (default: end)",
            "by": "what the rows are: lines (default), stacks, functions, files, phases of the step, ages",
            "fail-above": "exit status 1 if a device grew by more, such as 512MiB (0: at all)",
            **_DEVICE,
            **_CODE,
            **_STACKS,
        },
        (
            (
                "diff before.alloctrace after.alloctrace --fail-above 64MiB",
                "which lines hold more than before the change; exit status 1 when a device grew by more than 64 MiB",
            ),
            ("diff run.alloctrace --since step:10 --until step:20", "what ten steps left behind"),
        ),
        "TRACE [OTHER]",
    ),
    "sites": Verb(
        "what each line allocates, and how long it lives",
        "Shows which lines hold the most, which allocate the most per step, and what of it outlives its step, is kept "
        "for backward, or waits for the allocator. Per step means on average of the last steps.",
        {
            **_CSV,
            "top": "rows of each table (default: 5; 0: all)",
            "at": "the run until this moment (default: end)",
            "since": "what was allocated after this moment",
            "until": "what was allocated up to this moment (default: end)",
            "by": "what the rows are: lines (default), stacks, functions, files",
            **_DEVICE,
            **_CODE,
            **_STACKS,
        },
        (
            ("sites run.alloctrace --at step:10", "what each line had allocated when step 10 ended"),
            ("sites run.alloctrace --since step:10 --until step:20", "what each line allocated in these ten steps"),
            ("sites run.alloctrace --csv > sites.csv", "all lines, with all columns"),
        ),
    ),
    "segments": Verb(
        "what torch holds of each device at a moment, by segment",
        "Shows the segments that torch's allocator holds from the driver, each with a map of its blocks. They are "
        "those that torch.cuda.memory_snapshot() would have told then.",
        {
            **_CSV,
            "top": "so many of the largest (default: 20; 0: all)",
            "at": "the moment (default: end)",
            **_DEVICE,
        },
        (("segments run.alloctrace --at peak:reserved", "what was held from the driver when that was the most"),),
    ),
    "blocks": Verb(
        "the largest blocks at a moment, and the line that made each",
        "Shows the largest blocks that are in use at a moment, with their age and the line that made each. --json and "
        "--csv have the free ones, too.",
        {
            **_CSV,
            "top": "so many of the largest (default: 20; 0: all)",
            "at": "the moment (default: end)",
            **_DEVICE,
            **_CODE,
            **_STACKS,
        },
        (("blocks run.alloctrace --at step:12 --top 50", "the 50 largest blocks when step 12 ended"),),
    ),
    "timeline": Verb(
        "requested, allocated, active, reserved bytes over time",
        "Shows each sum of a device's memory over time, with the highest of each interval, so that no peak is lost. "
        "What each sum means is told in docs/reading.md.",
        {
            **_CSV,
            "since": "begin at this moment (default: the beginning of the trace)",
            "until": "end at this moment (default: end)",
            "points": "intervals in the whole trace (default: 2000)",
            **_DEVICE,
        },
        (("timeline run.alloctrace --since step:10 --csv > timeline.csv", "the sums since step 10 ended, to plot"),),
    ),
    "fragmentation": Verb(
        "what is free in which pieces, and which blocks pin it",
        "Shows how the memory that torch holds but does not use is cut up, and which lines made the live blocks that "
        "keep it from being returned. Allocators that tell no segments (the CPU's) have none of it.",
        {
            **_CSV,
            "top": "rows of each table (default: 5; 0: all)",
            "at": "the moment (default: end)",
            **_DEVICE,
            **_CODE,
            **_STACKS,
        },
        (("fragmentation run.alloctrace --at peak:reserved", "what was free when the most was reserved"),),
    ),
    "oom": Verb(
        "why memory ran out, and what to do",
        "Shows the requests that were refused: what was asked for, what was there, and why it did not do. Says what "
        "would help, and which lines held the most then.",
        {
            **_CSV,
            "top": "so many of the last ones (default: 3; 0: all)",
            "since": "those after this moment (default: the beginning of the trace)",
            "until": "those up to this moment (default: end)",
            **_DEVICE,
            **_CODE,
            **_STACKS,
        },
        (
            ("oom run.alloctrace", "the last refused requests, and what to do"),
            ("oom run.alloctrace --since step:20 --top 0", "all that were refused after step 20 had ended"),
        ),
    ),
    "verify": Verb(
        "whether the trace agrees with the allocator's own states",
        "Compares the replay with every state of the allocator that is in the trace, and names each event that does "
        "not fit what came before. Exit status 1 when something does not agree or was lost.",
        {},
        (("verify run.alloctrace", "whether what the tool shows of this trace can be relied on"),),
    ),
}
"""What each verb shows."""


def verb_named(name: str | None) -> Verb:
    """The verb; without one the verdict."""
    return VERDICT if name is None else VERBS[name]


def takers(option: str) -> str:
    """The verbs that take an option, in words."""
    names = [name for name, verb in VERBS.items() if option in verb.options]
    if option in VERDICT.options:
        names.insert(0, "the verdict")
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
