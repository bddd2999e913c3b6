"""Groups of slow tests (see DEVELOPING.md), which only `tools/test --all` and `tools/test --slow=GROUP` run.

`@pytest.mark.slow("GROUP")` adds a test to a group. Packages that only one group needs are the optional dependency
`dev-GROUP` in pyproject.toml, which tools/test installs.
"""

from __future__ import annotations

from collections.abc import Iterable

GROUPS = (
    *("architectures", "browser", "builds", "checks", "cluster", "docs", "extremes", "integrations", "interpreters"),
    *("recording", "simcuda", "third_party"),
)


def describe(groups: Iterable[str]) -> str:
    """Return the number of tests of each group: "builds 3, simcuda 91"."""
    names = list(groups)
    return ", ".join(f"{group} {names.count(group)}" for group in sorted(set(names)))
