"""Run by the build: a wheel holds the bundled models only as their MODEL.md says they are, by sha256."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROW = re.compile(r"^\| (\S+) \| (\d+) \| `([0-9a-f]{64})` \|$", re.M)


def faults(models: Path) -> list[str]:
    """What is not as it should be in a folder of models; empty where all is well."""
    found = []
    pages = sorted(models.glob("*/MODEL.md"))
    if not pages:
        found.append(f"there are no models in {models}")
    for page in pages:
        rows = ROW.findall(page.read_text(encoding="utf-8"))
        there = {path.name for path in page.parent.iterdir()} - {page.name}
        for name, size, sha in rows:
            path = page.parent / name
            content = path.read_bytes() if path.is_file() else b""
            if len(content) != int(size) or hashlib.sha256(content).hexdigest() != sha:
                found.append(f"{path} is not the file that {page} names")
        found += [f"{page} does not name {name}" for name in sorted(there - {name for name, _, _ in rows})]
    return found


class Hook(BuildHookInterface):  # type: ignore[misc]
    """Refuses to build from models that were changed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before anything is put together."""
        if wrong := faults(Path(self.root) / "models"):
            raise SystemExit("\n".join(wrong))
