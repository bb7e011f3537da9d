"""Which branch of an If runs, decided by the feed: merged decoders hold the model with and without cache in one If."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnx.records import Array

if TYPE_CHECKING:
    from onnx import NodeProto


@dataclass(frozen=True, slots=True)
class Chooser:
    """Decides Ifs by a feed; `key` identifies a decision."""

    path: Path
    inputs: Mapping[str, Array]

    @property
    def key(self) -> tuple[bool, ...]:
        """The truth of every input that could be a condition, by name."""
        return tuple(bool(a.ravel()[0]) for _, a in sorted(self.inputs.items()) if a.dtype == bool and a.size == 1)

    def choose(self, node: NodeProto) -> bool | None:
        """The branch of `node`: by the input that is its condition, else the branch that needs no past."""
        value = self.inputs.get(node.input[0])
        if value is not None and np.size(value) == 1:
            return bool(np.ravel(value)[0])
        from attnx.sites.recognise import without_cache

        return without_cache(node)


def chooser(path: Path, inputs: Mapping[str, Array] | None) -> Chooser:
    """A chooser for a feed; without a feed, every If takes the branch that needs no cache."""
    return Chooser(path, {k: np.asarray(v) for k, v in (inputs or {}).items()})
