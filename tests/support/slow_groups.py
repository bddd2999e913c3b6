"""Groups of slow tests, which `tools/test --all` or `tools/test --slow=GROUP` runs; `tools/test` leaves them out.
DEVELOPING.md describes them.

`@pytest.mark.slow("GROUP")` puts a test into a group. A group whose tests need packages that no others need has an
optional dependency `dev-GROUP` in pyproject.toml, which tools/test installs.
"""

from __future__ import annotations

from collections.abc import Iterable

GROUPS = (
    *("architectures", "browser", "builds", "cluster", "docs", "extremes", "integrations", "interpreters"),
    *("recording", "simcuda", "third_party"),
)


def counted(groups: Iterable[str]) -> str:
    """Return the number of tests of each group: "builds 3, simcuda 91"."""
    names = list(groups)
    return ", ".join(f"{group} {names.count(group)}" for group in sorted(set(names)))
