"""Groups of slow tests, which `tools/test --all` or `tools/test --slow=GROUP` runs; `tools/test` leaves them out.

`@pytest.mark.slow("GROUP")` puts a test into a group. A group whose tests need packages that no others need has an
optional dependency `dev-GROUP` in pyproject.toml, which tools/test installs.
"""

from __future__ import annotations

from collections.abc import Iterable

GROUPS = {
    "architectures": "the core compiled for other processors",
    "browser": "the report in Chromium, and its assets made again",
    "builds": "modules and packages built from scratch",
    "cluster": "traces of many ranks, read by the workers of a Dask cluster",
    "docs": "the documentation as a site",
    "extremes": "traces with as much as possible of one thing",
    "integrations": "Lightning, transformers, TensorBoard and Prometheus as docs/watching.md uses them",
    "interpreters": "the frame walk under every installed Python",
    "recording": "long kills, recordings of many events, the cost of all recorders, the leak corpus on the CPU",
    "simcuda": "third-party models on the simulated device",
    "strangers": "verdicts on programs by people who had not read the method",
}


def counted(groups: Iterable[str]) -> str:
    """Return the number of tests of each group: "builds 3, simcuda 91"."""
    names = list(groups)
    return ", ".join(f"{group} {names.count(group)}" for group in sorted(set(names)))
