"""The slow tests: which groups there are, what each concerns, and whether that has changed since the group last passed.

`@pytest.mark.slow("GROUP")` keeps a test out of the ordinary run; tests/conftest.py decides which groups run.
`tests/slow_checked.json` holds a fingerprint for each group: that of the files that it concerns when all of its tests
last passed. It is written by `tools/test --all` and `tools/test --slow=GROUP`, and committed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from running import ROOT

CHECKED = ROOT / "tests" / "slow_checked.json"

RECORDER = ("csrc/core/base", "csrc/core/format", "csrc/core/recording", "csrc/python/recording")
GROUPS: dict[str, tuple[str, ...]] = {
    "recording": (*RECORDER, "csrc/torch", "tests/recording/test_kill.py", "tests/recording/test_recording.py"),
    "interpreters": (*RECORDER, "tests/recording/test_frame_walk.py", "tests/support/frame_walk*"),
    "builds": (
        *("setup.py", "pyproject.toml", "MANIFEST.in", "pytorch_alloctrace/recording/building.py"),
        *("pytorch_alloctrace/recording/loading.py", "tests/project/test_build.py", "tests/project/test_install.py"),
    ),
    "architectures": (*RECORDER, "csrc/core", "csrc/system", "csrc/python", "tests/project/test_architectures.py"),
    "extremes": (
        *("csrc/core/format", "csrc/core/reading", "csrc/core/replay", "pytorch_alloctrace/reading"),
        *("tests/format/test_extreme_traces.py", "tests/support/extreme_traces.py"),
    ),
    "strangers": (
        "csrc/core/replay",
        "pytorch_alloctrace/analysis/leaks",
        "pytorch_alloctrace/analysis/ranks",
        "tests/corpus",
        "tests/analysis/test_strangers.py",
        "tests/ranks/test_ranks_strangers.py",
    ),
    "browser": (
        *("pytorch_alloctrace/report/page", "pytorch_alloctrace/report/web", "tools/web"),
        *("tests/report/test_report_browser.py", "tests/support/report_program.py"),
    ),
    "simcuda": ("tools/simcuda", "tests/simcuda", "tests/support/simcuda_runs.py"),
}
"""The files and folders that each group concerns, as patterns."""


def fingerprint(group: str) -> str:
    """A hash of the names and contents of the files that a group concerns. Asks no git: a clone may be used where there
    is none."""
    found = {file for pattern in GROUPS[group] for path in ROOT.glob(pattern) for file in (path, *path.rglob("*"))}
    digest = hashlib.sha256()
    for file in sorted(found):
        if file.is_file() and file.suffix not in (".pyc", ".so"):
            digest.update(f"{file.relative_to(ROOT)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\0".encode())
    return digest.hexdigest()[:16]


def known() -> dict[str, str]:
    """The fingerprint with which each group last passed."""
    return dict(json.loads(CHECKED.read_text())) if CHECKED.exists() else {}


def changed_groups() -> list[str]:
    """The groups whose files are not those of their last passing run."""
    before = known()
    return [group for group in GROUPS if before.get(group) != fingerprint(group)]


def remember(passed: dict[str, str]) -> None:
    """Writes down the fingerprints with which groups passed, and forgets groups that no longer exist."""
    kept = {group: value for group, value in {**known(), **passed}.items() if group in GROUPS}
    CHECKED.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")


def counted(groups: Iterable[str]) -> str:
    """How many tests there are of each group: "builds 3, simcuda 91"."""
    names = list(groups)
    return ", ".join(f"{group} {names.count(group)}" for group in sorted(set(names)))
