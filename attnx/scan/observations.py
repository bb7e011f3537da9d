"""The observations of a scan as a long table, one row per value; and the sums that its summary needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnx.errors import UsageError, lacks_memory
from attnx.installed import pip
from attnx.measure import WANTS
from attnx.records import Array, Axis, Measurement
from attnx.scan.corpus import Text

COLUMNS = {
    "text": "number of the text in the corpus, from 0; empty ones do not count",
    "source": "its file",
    "line": "its line or row there, from 1",
    "tokens": "how many tokens the model saw of it",
    "measure": "name of the measure",
    "item": "what of the text the value is about (coreference: pronoun → candidate); null where it is the text",
    "layer": "label of the layer: L0, L1, ...",
    "head": "the head, from 0; null for a measure of a whole layer",
    "value": "the value; one that does not exist (nothing repeats, nothing is visible) has no row",
}
"""The columns of the file."""


@dataclass(slots=True)
class Sums:
    """A measure summed over texts, by layer and head."""

    unit: str
    formula: str
    source: str
    bounds: tuple[float | None, float | None]
    layers: list[str]
    sums: Array
    """float64 [S,H]."""
    counts: Array
    """int64 [S,H]: the number of texts in which the value exists."""

    def add(self, other: Sums) -> None:
        """Add the sums of other texts."""
        labels = list(dict.fromkeys((*self.layers, *other.layers)))
        width = max(self.sums.shape[1], other.sums.shape[1])
        sums, counts = np.zeros((len(labels), width)), np.zeros((len(labels), width), np.int64)
        for one in (self, other):
            rows = [labels.index(label) for label in one.layers]
            sums[rows, : one.sums.shape[1]] += one.sums
            counts[rows, : one.sums.shape[1]] += one.counts
        self.layers, self.sums, self.counts = labels, sums, counts

    def mean(self, name: str, texts: int) -> Measurement:
        """The mean over texts, NaN where the value never exists; a note says how many texts it covers, and why.

        Args:
            name: The name of the measure.
            texts: How many texts there are.
        """
        most = int(self.counts.max(initial=0))
        coverage = "no value in any text" if most == 0 else f"a value in {most} of {texts} texts"
        wants = f"; a text needs {WANTS[name]}" if name in WANTS else ""
        notes = (f"{name}: {coverage}{wants}",) if most == 0 or (wants and most < texts) else ()
        values = self.sums / np.where(self.counts > 0, self.counts, np.nan)
        axes = (Axis("layer", tuple(self.layers)), Axis("head", tuple(f"H{at}" for at in range(values.shape[1]))))
        formula = f"mean over texts of: {self.formula}" if self.formula else "mean over texts"
        return Measurement(name, self.unit, axes, values, self.bounds, self.source, formula, notes)


@dataclass(slots=True)
class Rows:
    """Collects the values of texts in the order of the file."""

    names: dict[str, int] = field(default_factory=dict)
    layers: dict[str, int] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    sums: dict[str, Sums] = field(default_factory=dict)
    _columns: dict[str, list[Array]] = field(default_factory=dict)

    def add(self, number: int, text: Text, tokens: int, found: Sequence[Measurement]) -> None:
        """Add the measurements of one text: [layer], [layer, head], or these with a further axis of the text."""
        for one in found:
            axes = [axis.name for axis in one.axes]
            values = np.asarray(one.values, np.float32)
            if "head" not in axes:
                values = np.expand_dims(values, 1)
            other = [axis for axis in one.axes if axis.name not in ("layer", "head")]
            values = values.reshape(1, 1, *values.shape[:2], -1)
            items = other[0].labels if other else None
            self._put([number], [text], [tokens], [one], values, items, "head" in axes)

    def add_many(
        self,
        numbers: Sequence[int],
        texts: Sequence[Text],
        tokens: Sequence[int],
        like: Sequence[Measurement],
        values: Array,
    ) -> None:
        """Add the same measures [layer, head] of several texts.

        Args:
            numbers: The number of each text.
            texts: T texts.
            tokens: Their lengths.
            like: M measurements of one text, which give the names, meanings and axes.
            values: [T,M,S,H].
        """
        self._put(numbers, texts, tokens, like, np.asarray(values, np.float32)[..., None], None, True)

    def _put(
        self,
        numbers: Sequence[int],
        texts: Sequence[Text],
        tokens: Sequence[int],
        like: Sequence[Measurement],
        values: Array,
        items: Sequence[str] | None,
        heads: bool,
    ) -> None:
        """Add values [T,M,S,H,I]: one row for each that exists."""
        there = ~np.isnan(values)
        at_text, at_measure, at_layer, at_head, at_item = np.nonzero(there)

        def known(words: dict[str, int], labels: Sequence[str]) -> Array:
            return np.array([words.setdefault(label, len(words)) for label in labels], np.int32)

        count = len(at_text)
        columns = {
            "text": np.asarray(numbers, np.int64)[at_text],
            "source": known(self.sources, [text.source for text in texts])[at_text],
            "line": np.array([text.line for text in texts], np.int64)[at_text],
            "tokens": np.asarray(tokens, np.int32)[at_text],
            "measure": known(self.names, [one.name for one in like])[at_measure],
            "item": np.full(count, -1, np.int32) if items is None else known(self.items, items)[at_item],
            "layer": known(self.layers, like[0].axes[0].labels)[at_layer],
            "head": at_head.astype(np.int32) if heads else np.full(count, -1, np.int32),
            "value": values[there],
        }
        for name, column in columns.items():
            self._columns.setdefault(name, []).append(column)
        if items is None:
            sums = np.where(there, values, 0.0).sum(axis=0, dtype=np.float64)[..., 0]
            counts = there.sum(axis=0)[..., 0]
            for at, one in enumerate(like):
                self._sum(one, sums[at], counts[at])

    def _sum(self, one: Measurement, sums: Array, counts: Array) -> None:
        made = Sums(one.unit, one.formula, one.source, one.bounds, list(one.axes[0].labels), sums, counts)
        if one.name in self.sums:
            self.sums[one.name].add(made)
        else:
            self.sums[one.name] = made

    def table(self) -> Any:
        """An Arrow table with the columns `COLUMNS`."""
        arrow, _ = arrow_of()
        none = np.zeros(0, np.int32)

        whole = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        if len(self._columns.get("text", ())) > 1:
            order = np.argsort(whole["text"], kind="stable")
            whole = {name: values[order] for name, values in whole.items()}

        def column(name: str) -> Array:
            return whole.get(name, none)

        def words(name: str, known: Mapping[str, int]) -> Any:
            at = column(name)
            indices = arrow.array(at, arrow.int32(), mask=at < 0)
            return arrow.DictionaryArray.from_arrays(indices, arrow.array(list(known), arrow.string()))

        head = column("head")
        columns = {
            "text": arrow.array(column("text"), arrow.int64()),
            "source": words("source", self.sources),
            "line": arrow.array(column("line"), arrow.int64()),
            "tokens": arrow.array(column("tokens"), arrow.int32()),
            "measure": words("measure", self.names),
            "item": words("item", self.items),
            "layer": words("layer", self.layers),
            "head": arrow.array(head, arrow.int32(), mask=head < 0),
            "value": arrow.array(column("value"), arrow.float32()),
        }
        return arrow.table(columns, schema=schema())


def arrow_of() -> tuple[Any, Any]:
    """Pyarrow and pyarrow.parquet.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        if lacks_memory(error):
            raise
        raise UsageError("scan writes Parquet and needs pyarrow", pip("parquet")) from None
    return pyarrow, pyarrow.parquet


def schema() -> Any:
    """The file's Arrow schema."""
    arrow, _ = arrow_of()
    word = arrow.dictionary(arrow.int32(), arrow.string())
    types = {
        "text": arrow.int64(), "source": word, "line": arrow.int64(), "tokens": arrow.int32(), "measure": word,
        "item": word, "layer": word, "head": arrow.int32(), "value": arrow.float32(),
    }  # fmt: skip
    can_lack = ("item", "head")
    return arrow.schema([arrow.field(name, types[name], nullable=name in can_lack) for name in COLUMNS])
