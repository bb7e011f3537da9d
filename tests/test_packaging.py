"""The lock file pins what pyproject.toml asks for, with hashes, and names no registry."""

import re
import tomllib
from pathlib import Path

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


def test_readme_gives_a_reason_for_every_dependency() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme[readme.index("## Dependencies") :]
    for requirement in PROJECT["dependencies"]:
        assert re.match(r"[A-Za-z0-9_.-]+", requirement)[0] in table  # type: ignore[index]
    for extra in PROJECT["optional-dependencies"]:
        assert f"`{extra}`" in table
