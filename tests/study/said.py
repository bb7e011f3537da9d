"""A model of which only the configuration is looked at."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attnx.errors import ModelError


class Stub:
    """A model without a tokenizer, whose config.json says what is given."""

    def __init__(self, folder: Path, vocabulary: int | None = None, labels: dict[str, str] | None = None) -> None:
        self.name, self.path = "stub", folder / "model.onnx"
        config: dict[str, Any] = {"vocab_size": vocabulary, "id2label": labels}
        (self.path.parent / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    sites: tuple[Any, ...] = (SimpleNamespace(causal=True),)

    def slots(self) -> list[Any]:
        return []

    @property
    def tokenizer(self) -> Any:
        raise ModelError("none", "")
