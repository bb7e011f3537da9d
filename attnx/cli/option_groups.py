"""The options that commands share, in groups: what to run on, what a decoder writes, which model, where output goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODEL = "minilm"
"""The model that runs where none is named: the bundled one."""


@dataclass(frozen=True, slots=True)
class Source:
    """What to run on."""

    text: str | None = None
    """The text; "-" is stdin."""
    pair: str | None = None
    file: Path | None = None
    """A file with one text per line; "-" is stdin."""
    ids: str | None = None
    """Token ids instead of a text: "101,2023,102"."""
    inputs: Path | None = None
    """An .npz file with arrays for the graph's inputs."""
    values: tuple[str, ...] = ()
    """NAME=VALUE for inputs."""
    dims: tuple[str, ...] = ()
    """NAME=SIZE for dimensions that `values` leave open."""
    target: str | None = None
    """The text that the decoder of an encoder-decoder reads."""
    image: Path | None = None
    audio: Path | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run on."""
        alone = (self.text, self.file, self.ids, self.inputs, self.image, self.audio)
        return all(one is None for one in alone) and not self.values

    @property
    def beside(self) -> dict[str, object]:
        """Option -> its value, None where it was not given: everything but the text itself."""
        return {
            "--pair": self.pair, "--file": self.file, "--ids": self.ids, "--inputs": self.inputs,
            "--set": self.values or None, "--dim": self.dims or None, "--target": self.target, "--image": self.image,
            "--audio": self.audio,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Writing:
    """What a decoder is to write."""

    generate: int | None = None
    """The most tokens to write; None where it writes nothing."""
    temperature: float = 0.0
    top_k: int | None = None
    seed: int | None = None
    chat: bool = False
    """Whether the text goes into the tokenizer's chat template."""


NO_WRITING = Writing()
"""Nothing is written."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model runs, and where."""

    name: str = MODEL
    tokenizer: Path | None = None
    """Its tokenizer, if that is not beside the model."""
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Output:
    """How results are shown."""

    json: bool = False
