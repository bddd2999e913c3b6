"""All verbs that read a trace, in the order of the help. A new verb is a file of its own and a line here.

`run`, which records, has its own command line in recording/run.py.
"""

from __future__ import annotations

from .annotate import Annotate
from .blocks import Blocks
from .convert import Convert
from .diagnose import Diagnose
from .diff import Diff
from .export import Export
from .finish import Finish
from .fit import Fit
from .fold import Fold
from .fragmentation import Fragmentation
from .leaks import Leaks
from .live import Live
from .oom import Oom
from .peak import Peak
from .ranks import Ranks
from .report import Report
from .segments import Segments
from .serve import Serve
from .sites import Sites
from .timeline import Timeline
from .verb import Verb
from .verify import Verify
from .what_if import WhatIf

VERBS: list[Verb] = [
    Diagnose(),
    Leaks(),
    Peak(),
    Annotate(),
    Diff(),
    Ranks(),
    Sites(),
    Segments(),
    Blocks(),
    Timeline(),
    Fragmentation(),
    Oom(),
    WhatIf(),
    Fit(),
    Report(),
    Serve(),
    Live(),
    Export(),
    Convert(),
    Verify(),
    Finish(),
    Fold(),
]
