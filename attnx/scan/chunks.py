"""A corpus cut into parts of a fixed number of texts: what is read, and the texts of each part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from attnx.scan.corpus import Text, read

PART = 512
"""Texts per part: the most that is lost when a scan is killed."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """What is read, and how it is cut into parts."""

    files: tuple[Path, ...]
    field: str = "text"
    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    part: int = PART

    def chunks(self) -> Iterator[Chunk]:
        """The corpus, part by part; only one is in memory."""
        texts = read(self.files, self.field, self.needs, self.may)
        number = start = 0
        while chunk := list(islice(texts, self.part)):
            yield Chunk(number, start, tuple(chunk))
            number, start = number + 1, start + len(chunk)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The texts of one part."""

    number: int
    start: int
    texts: tuple[Text, ...]

    @property
    def digest(self) -> str:
        """Identifies these texts, their positions and their fields."""
        content = [(text.source, text.line, text.text, text.fields) for text in self.texts]
        return hashlib.sha256(
            json.dumps(content, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
        ).hexdigest()
