"""Which files of the package name which, read off the source: rooms name only rooms below, and no files form a circle.

Unlike import contracts this counts what hides from them: names of modules in strings, such as a registry imports.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import attnx

ROOT = Path(attnx.__file__).parent
LAYERS: list[str] = tomllib.loads((ROOT.parent / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
    "contracts"
][0]["layers"]
FLOOR = {room: -at for at, layer in enumerate(LAYERS) for room in layer.split(" | ")}
"""Room -> its floor, counted down from the top."""


def modules(root: Path) -> dict[str, Path]:
    """Module -> its file."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join((root.name, *parts)).removesuffix(".__init__")] = path
    return found


def in_string(text: str, files: Mapping[str, Path]) -> Iterator[str]:
    """Modules that a string names: "attnx.view.notebook", "attnx.model.open", or all of a folder: "attnx.view."."""
    if not text.replace(".", "").replace("_", "").isalnum():
        return
    if text.endswith("."):
        yield from (name for name in files if name.rpartition(".")[0] + "." == text)
        return
    while "." in text:
        if text in files:
            yield text
            return
        text = text.rpartition(".")[0]


def names(tree: ast.AST, files: Mapping[str, Path]) -> Iterator[str]:
    """Modules of the package that a file names: at its top, in a function, for types alone, or in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not read"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in files else str(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from in_string(node.value, files)


def arrows(root: Path) -> dict[str, set[str]]:
    """Module -> the modules of the package that it names."""
    files = modules(root)
    return {
        module: {name for name in names(ast.parse(path.read_text("utf-8")), files) if name in files} - {module}
        for module, path in files.items()
    }


def circles(graph: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Groups of files that name one another, in a row or directly."""
    reach = {}
    for start in graph:
        seen: set[str] = set()
        todo = [start]
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo += new
        reach[start] = seen
    return sorted({tuple(sorted(b for b in graph if b in reach[a] and a in reach[b])) for a in graph} - {()})


def upward(graph: Mapping[str, set[str]], floor: Mapping[str, int]) -> list[str]:
    """Arrows to a room that is not below."""

    def room(module: str) -> str:
        return module.split(".")[1] if "." in module else ""

    return [
        f"{one} -> {other}"
        for one, others in graph.items()
        for other in sorted(others)
        if room(one) and room(one) != room(other) and (not room(other) or floor[room(one)] <= floor[room(other)])
    ]


@pytest.fixture(scope="module")
def house() -> dict[str, set[str]]:
    return arrows(ROOT)


def test_rooms_name_only_rooms_below(house: dict[str, set[str]]) -> None:
    assert upward(house, FLOOR) == []


def test_no_files_form_a_circle(house: dict[str, set[str]]) -> None:
    assert circles(house) == []


@pytest.mark.parametrize(
    "text",
    [
        "import p.top.a",
        "from p.top import a",
        "from p.top.a import x",
        "def f():\n    from p.top.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.top.a import x",
        "from importlib import import_module\nimport_module('p.top.a')",
        "PLACES = {'x': 'p.top.a.x'}",
        "from importlib import import_module\ndef f(n):\n    return import_module(f'p.top.{n}')",
    ],
)
def test_every_way_to_name_a_file_is_seen(tmp_path: Path, text: str) -> None:
    for room in ("top", "low"):
        (tmp_path / "p" / room).mkdir(parents=True)
        (tmp_path / "p" / room / "__init__.py").touch()
    (tmp_path / "p" / "top" / "a.py").write_text("from p.low.b import y")
    (tmp_path / "p" / "low" / "b.py").write_text('"""Prose may name p.top.a."""\n')
    graph = arrows(tmp_path / "p")
    assert (upward(graph, {"top": 0, "low": -1}), circles(graph)) == ([], [])
    (tmp_path / "p" / "low" / "b.py").write_text(text)
    graph = arrows(tmp_path / "p")
    assert upward(graph, {"top": 0, "low": -1}) == ["p.low.b -> p.top.a"]
    assert upward(graph, {"top": 0, "low": 0}) == ["p.low.b -> p.top.a", "p.top.a -> p.low.b"]  # side by side
    assert circles(graph) == [("p.low.b", "p.top.a")]
