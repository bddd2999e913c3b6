"""Fixture of the tests that walk through the objects of their own process."""

from __future__ import annotations

import pytest

from pytorch_alloctrace.objects.walk import Walk, Walker


@pytest.fixture(autouse=True)
def no_libraries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """End walks before the variables of libraries, which take a second, unless the test is marked `libraries`."""

    def prefer(self: Walker, walk: Walk, seconds: float, objects: int) -> None:
        walk.prefer(self.rank)

    if not request.node.get_closest_marker("libraries"):
        monkeypatch.setattr(Walker, "walk_libraries", prefer)
