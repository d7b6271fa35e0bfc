"""Paths lead to what serves them."""

import pytest

from pricekeeper.http.routing import Paths


@pytest.fixture
def paths() -> Paths[str]:
    made: Paths[str] = Paths()
    for path in ("/a", "/a/{x}", "/a/{x}/b", "/a/{x}/b/{y}", "/a/today", "/"):
        made.add(path, path)
    return made


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a", ("/a", {})),
        ("/", ("/", {})),
        ("/a/1", ("/a/{x}", {"x": "1"})),
        ("/a/1/b", ("/a/{x}/b", {"x": "1"})),
        ("/a/1/b/2", ("/a/{x}/b/{y}", {"x": "1", "y": "2"})),
        ("/a/today", ("/a/today", {})),
        ("/a/", None),
        ("/a/1/", None),
        ("/a//b", None),
        ("/a/1/c", None),
        ("/b", None),
        ("", None),
        ("/a/1/b/2/3", None),
    ],
)
def test_a_path_finds_its_target(
    paths: Paths[str], path: str, expected: tuple[str, dict[str, str]] | None
) -> None:
    """Literal segments before parameters, and no empty parameter."""
    target, parameters = paths.find(path)
    assert (None if target is None else (target, parameters)) == expected
