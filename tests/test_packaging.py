"""The lock file pins what pyproject.toml asks for, with hashes, and names no registry."""

import importlib.util
import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def wanted(requirements: list[str]) -> set[str]:
    """Names, with the extras of attnx itself followed."""
    out: set[str] = set()
    for requirement in requirements:
        if name(requirement) == "attnx":
            for extra in re.findall(r"\[(.*)\]", requirement)[0].split(","):
                out |= wanted(PROJECT["optional-dependencies"][extra])
        else:
            out.add(name(requirement))
    return out


def test_lock_pins_every_dependency() -> None:
    pinned = {name(line) for line in LOCK.splitlines() if re.match(r"[A-Za-z0-9].*==", line)}
    asked = wanted([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
    assert asked - pinned == set(), "make the lock file anew: its first lines say how"


def test_every_pin_has_hashes() -> None:
    pins = re.split(r"^(?=[A-Za-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert len(pins) > 30
    assert all("--hash=sha256:" in pin for pin in pins)


def test_lock_names_no_registry() -> None:
    assert "://" not in LOCK
    assert "index-url" not in re.sub(r"^#.*$", "", LOCK, flags=re.MULTILINE)


def test_the_docs_give_a_reason_for_every_dependency() -> None:
    table = (ROOT / "docs" / "reference" / "dependencies.md").read_text(encoding="utf-8")
    for requirement in PROJECT["dependencies"]:
        assert re.match(r"[A-Za-z0-9_.-]+", requirement)[0] in table  # type: ignore[index]
    for extra in PROJECT["optional-dependencies"]:
        assert f"`{extra}`" in table


def test_without_the_gpu_build_the_docs_install_all_the_rest() -> None:
    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text(encoding="utf-8")
    line = re.search(r"^pip install (onnxruntime .*)$", page, re.MULTILINE)
    assert line
    given = {re.match(r"[A-Za-z0-9_.-]+", word.strip("'"))[0] for word in line[1].split()}  # type: ignore[index]
    needed = {re.match(r"[A-Za-z0-9_.-]+", requirement)[0] for requirement in PROJECT["dependencies"]}  # type: ignore[index]
    assert given == needed - {"onnxruntime-gpu"}


def _build_hook() -> ModuleType:
    """hatch_build.py, without the builder that it plugs into."""
    places = ("hatchling", "builders", "hooks", "plugin", "interface")
    stubs = {".".join(places[: i + 1]): ModuleType(".".join(places[: i + 1])) for i in range(len(places))}
    stubs[".".join(places)].BuildHookInterface = object  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name, stub in stubs.items():
            patch.setitem(sys.modules, name, stub)
        spec.loader.exec_module(module)
    return module


def test_the_build_holds_the_models_against_their_sha256(tmp_path: Path) -> None:
    hook = _build_hook()
    assert PROJECT  # read above; the hook is named there
    assert "hatch_build.py" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert hook.faults(ROOT / "models") == []
    shutil.copytree(ROOT / "models" / "tiny-gpt", tmp_path / "models" / "tiny-gpt")
    assert hook.faults(tmp_path / "models") == []
    config = tmp_path / "models" / "tiny-gpt" / "config.json"
    content = config.read_bytes()
    for change in (content + b" ", content[:-1] + b" ", b""):
        config.write_bytes(change)
        (said,) = hook.faults(tmp_path / "models")
        assert "config.json is not the file" in said
        builder = hook.Hook()
        builder.root = tmp_path
        with pytest.raises(SystemExit, match="is not the file"):
            builder.initialize("standard", {})
    config.write_bytes(content)
    (config.parent / "more.py").touch()
    assert "does not name more.py" in hook.faults(tmp_path / "models")[0]
    assert "no models" in hook.faults(tmp_path / "none")[0]
