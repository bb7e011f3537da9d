"""The printed line that installs an extra fits how attnx was installed."""

import json
from importlib import metadata
from pathlib import Path

import pytest

from attnx import installed


class Found:
    def __init__(self, origin: object) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "a clone"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    return folder


def line(monkeypatch: pytest.MonkeyPatch, origin: object) -> str:
    monkeypatch.setattr(metadata, "distribution", lambda name: Found(origin))
    return installed.pip("figures")


def test_from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    assert line(monkeypatch, None) == "pip install 'attnx[figures]'"


@pytest.mark.parametrize(("editable", "says"), [(True, "-e "), (False, "")])
def test_from_a_clone(editable: bool, says: str, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = {"url": clone.as_uri(), "dir_info": {"editable": editable}}
    assert line(monkeypatch, origin) == f"pip install {says}'{clone}[figures]'"
    monkeypatch.chdir(clone)
    assert line(monkeypatch, origin) == f"pip install {says}'.[figures]'"
    monkeypatch.chdir(clone.parent)
    (clone / "pyproject.toml").unlink()  # it is gone: an index is what is left
    assert line(monkeypatch, origin) == "pip install 'attnx[figures]'"


def test_from_a_wheel_and_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = {"url": "file:///d/attnx-1.whl", "archive_info": {}}
    assert line(monkeypatch, wheel) == "pip install 'attnx[figures] @ file:///d/attnx-1.whl'"
    git = {"url": "https://example.org/a.git", "vcs_info": {"vcs": "git", "requested_revision": "v1"}}
    assert line(monkeypatch, git) == "pip install 'attnx[figures] @ git+https://example.org/a.git@v1'"


def test_not_installed_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Found:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    root = Path(installed.__file__).parents[1]
    monkeypatch.chdir(root)
    assert installed.pip("scan") == "pip install -e '.[scan]'"


def test_no_other_line_names_an_extra() -> None:
    """Every message that offers an extra asks `pip` for the line."""
    root = Path(installed.__file__).parent
    named = [
        path for path in root.rglob("*.py") if "install 'attnx[" in path.read_text() and path.name != "installed.py"
    ]
    assert named == []
