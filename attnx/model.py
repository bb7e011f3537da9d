"""The facade that `attnx.open` returns. Each method calls a stage or a study; the flow itself is `run/pipeline.py`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.records import QUANTITIES, Array, Miss, Site, Sites, Tokens, Trace
from attnx.run.arguments import flag_of, inputs_of, layers_of, path_of, positions_of, quantities_of, tokens_of, whole_of
from attnx.session.protocol import Run, Wanted
from attnx.session.session_pool import SessionPool

if TYPE_CHECKING:
    from attnx.interventions.perform import Results
    from attnx.interventions.plan import Step
    from attnx.measure.heads import HeadTable
    from attnx.run.generate import Plan
    from attnx.session.model_summary import ModelSummary
    from attnx.session.ort import Session, Slot
    from attnx.sites.recognise import Found
    from attnx.study.ablation import Ablation
    from attnx.study.attribution import Attribution
    from attnx.study.experiments import Source
    from attnx.study.logit_lens import LogitLens
    from attnx.study.patching import Patching
    from attnx.tokens import Tokenizer

SHOWN: tuple[str, ...] = ("query", "key", "value", "scores", "scaled", "capped", "masked", "weights", "context")


def open(model: str | Path = "minilm", *, device: str = "auto", tokenizer: str | Path | None = None) -> Model:
    """Open a model.

    Args:
        model: An .onnx file, a folder as on the Hub (config.json, tokenizer.json, model.onnx or onnx/model.onnx, or an
            encoder_model.onnx and its decoder_model*.onnx), a bundled name, or ORG/NAME in the Hub's cache.
        device: auto, cpu, cuda or cuda:N.
        tokenizer: A tokenizer file or folder, if it is not beside the model.

    Raises:
        ModelError: There is no such model, or it cannot be read.
    """
    from attnx.catalog.locate import locate
    from attnx.session.device import parse_device

    path_of(model, "a model")
    at = locate(str(model or ""))
    parse_device(device)
    place = at.tokenizer if isinstance(tokenizer, str) and not tokenizer else path_of(tokenizer, "a tokenizer")
    place = place or at.tokenizer
    return Model(at.name, at.path, device=device, tokenizer=place, encoder=at.encoder, with_past=at.with_past)


class Model:
    """An opened model. Nothing is loaded before it is needed.

    Attributes:
        name: The name that is shown.
        path: The .onnx file; of an encoder-decoder in two files, the decoder's.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        device: str = "auto",
        tokenizer: Path | None = None,
        encoder: Path | None = None,
        with_past: Path | None = None,
    ) -> None:
        self.name, self.path = name, path
        self.device, self._tokenizer_place = device, tokenizer
        self._encoder, self._with_past = encoder, with_past
        self.sessions = SessionPool(path, device)

    def __repr__(self) -> str:
        beside = ", with an encoder beside it" if self._encoder is not None else ""
        return f"<Model {self.name}: {self.path}, device {self.device}{beside}>"

    @cached_property
    def encoder(self) -> Model | None:
        """The encoder, if it is a separate file."""
        return self._beside(self._encoder)

    @cached_property
    def with_past(self) -> Model | None:
        """The decoder that continues from a cache, if it is a separate file."""
        return self._beside(self._with_past)

    def elsewhere(self) -> dict[str, Any]:
        """The arguments of `Model`, except the device, that open this model again in another process."""
        named = {"tokenizer": self._tokenizer_place, "encoder": self._encoder, "with_past": self._with_past}
        # A symbolic link is kept: its name describes the model, and the files that belong to it are beside it.
        places = {
            n: p.parent.resolve() / p.name if p is not None else None for n, p in {**named, "path": self.path}.items()
        }
        return {"name": self.name, **places}

    def again(self) -> Model:
        """The same files, opened anew, so that its sessions can have other settings."""
        return Model(**self.elsewhere(), device=self.device)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copying or pickling opens the files anew: sessions cannot leave their process."""
        return partial(Model, **self.elsewhere(), device=self.device), ()

    def _beside(self, path: Path | None) -> Model | None:
        return Model(self.name, path, device=self.device, tokenizer=self._tokenizer_place) if path else None

    # model.onnx -> graph -> sites

    def find(self, inputs: Mapping[str, Array] | None = None) -> ModelSummary:
        """The model's sites, inputs and outputs; `inputs` decides which branch of an If runs."""
        return self.sessions.find(inputs_of(inputs) or None)

    def graph(self, inputs: Mapping[str, Array] | None = None) -> Found:
        """The model's graph and sites, read from its file."""
        return self.sessions.graph(self.find(inputs).branch)

    def prepare(
        self, quantities: Collection[str] = QUANTITIES, layers: Collection[int] | None = None, *, rows: bool = False
    ) -> None:
        """Start opening what `trace` (or `rows`) will need for these layers, while the caller does other things."""
        if self._encoder is None:
            self.sessions.prepare(quantities, layers, rows)

    def plain(self, inputs: Mapping[str, Array] | None = None) -> Session:
        """A session on the model without taps, to measure what the model itself costs."""
        return self.sessions.plain(self.find(inputs))

    @property
    def sites(self) -> Sites:
        """Every attention computation found, in execution order."""
        return Sites(self.find().sites)

    @property
    def encoder_sites(self) -> tuple[Site, ...]:
        """The sites of the encoder, if it is a separate file."""
        return self.encoder.sites if self.encoder is not None else ()

    @property
    def misses(self) -> tuple[Miss, ...]:
        """What looked like attention and was refused, with the reason."""
        return self.find().misses

    def slots(self) -> list[Slot]:
        """The model's inputs."""
        from attnx.feed.inputs import looked_up

        found = self.find()
        return looked_up(found.inputs, found.rows)

    # text -> tokens

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            ModelError: There is no tokenizer beside the model.
        """
        from attnx.feed.text import open_tokenizer

        return open_tokenizer(self, self._tokenizer_place)

    def encode(self, text: str, pair: str | None = None) -> Tokens:
        """Text -> tokens, cut at the model's limit (a note says so)."""
        from attnx.feed.text import encode

        return encode(self, text, pair)

    # tokens, picture, sound -> feed -> session -> trace

    def trace(
        self,
        text: str | None = None,
        *,
        pair: str | None = None,
        target: str | None = None,
        tokens: Tokens | None = None,
        inputs: Mapping[str, Array] | None = None,
        image: str | Path | None = None,
        audio: str | Path | None = None,
        generate: int | Plan | None = None,
        layers: Collection[int] | None = None,
        quantities: Collection[str] = QUANTITIES,
        outputs: bool = False,
        verify: bool = True,
        verify_outputs: bool = False,
        required: bool = True,
    ) -> Trace:
        """Run the model and read the attention of its sites.

        Args:
            text: The text to run on; or
            tokens: tokens instead; or
            inputs: an array for each graph input (together with a text: for inputs that a text cannot fill).
            pair: A second segment.
            target: The text of an encoder-decoder's decoder.
            image: A picture file.
            audio: A WAV file.
            generate: Let the decoder write this many tokens, and show them too.
            layers: Only sites of these layers, -1 being the last; None for all.
            quantities: Which arrays to keep ("weights", "scores", ...). Fewer is faster.
            outputs: Also return the model's own outputs.
            verify: Check the arrays against one another.
            verify_outputs: Also run the model as it is and compare its own outputs; twice the time.
            required: Fail if the model has no attention; otherwise the trace is empty.

        Raises:
            InputError: One of the model's inputs cannot be filled, or the model has no attention.
            RunError: The run failed.
        """
        from attnx.run.pipeline import execute
        from attnx.run.prompt import Prompt

        flags = {"outputs": outputs, "verify": verify, "verify_outputs": verify_outputs, "required": required}
        for argument, value in flags.items():
            flag_of(value, argument)
        wanted = Wanted(
            self._layers(layers), quantities_of(quantities, outputs), outputs, verify, verify_outputs, required
        )
        files = path_of(image, "a picture"), path_of(audio, "a sound")
        return execute(
            self, Prompt(text, pair, tokens_of(tokens, text), inputs_of(inputs), target, *files, generate), wanted
        )

    def trace_many(
        self,
        texts: Iterable[str | Tokens],
        *,
        layers: Collection[int] | None = None,
        quantities: Collection[str] = ("masked", "weights"),
        size: int = 32,
        verify: bool = True,
    ) -> Iterator[Trace]:
        """Like `trace` for each text, in the same order; texts of similar length are batched.

        Raises:
            UsageError: A single text instead of several: each of its letters would be taken for a text.
        """
        from attnx.run.batch import trace_many

        size = whole_of(size, "a batch")
        return trace_many(self, texts, quantities_of(quantities), self._layers(layers), size=size, verify=verify)

    def rows(
        self,
        text: str | None = None,
        positions: Sequence[int] = (),
        *,
        tokens: Tokens | None = None,
        layers: Collection[int] | None = None,
        quantities: Collection[str] = ("masked", "weights"),
        verify: bool = True,
    ) -> Trace:
        """Like `trace`, but only the rows of the queries at `positions`, gathered in the graph: no matrix leaves it.

        Raises:
            InputError: A position that does not exist.
        """
        from attnx.feed.text import tokens_for
        from attnx.run.query_rows import rows

        wanted = positions_of(positions), quantities_of(quantities), self._layers(layers)
        return rows(self, tokens_for(self, text, tokens_of(tokens, text)), *wanted, verify)

    def heads(
        self, text: str | None = None, *, tokens: Tokens | None = None, layers: Collection[int] | None = None
    ) -> HeadTable:
        """The measures of `measure.describe_heads`, reduced in the graph: for texts whose matrices are large."""
        from attnx.feed.text import tokens_for
        from attnx.run.prompt import Prompt
        from attnx.study.head_stats import heads

        return heads(self, Prompt(tokens=tokens_for(self, text, tokens_of(tokens, text))), self._layers(layers))[0]

    def run_with(
        self,
        steps: Sequence[Step],
        source: str | Mapping[str, Any],
        other: str | Mapping[str, Any] | None = None,
        *,
        outputs: Collection[str] | None = None,
    ) -> Results:
        """Run the model with interventions; see `attnx.interventions.perform.run_with`."""
        from attnx.interventions.perform import run_with

        return run_with(self, steps, source, other, outputs=outputs)

    def ablate(self, source: Source, **asked: Any) -> Ablation:
        """Ablate heads, or knock edges out, and read how the output changes; see `attnx.study.experiments.ablate`."""
        from attnx.study.experiments import ablate

        return ablate(self, source, **asked)

    def patch(self, clean: Source, corrupt: Source, **asked: Any) -> Patching:
        """Patch activations of one text into the run of another; see `attnx.study.experiments.patch`."""
        from attnx.study.experiments import patch

        return patch(self, clean, corrupt, **asked)

    def patch_paths(self, clean: Source, corrupt: Source, **asked: Any) -> Patching:
        """Patch the paths from a head to later heads; see `attnx.study.experiments.patch_paths`."""
        from attnx.study.experiments import patch_paths

        return patch_paths(self, clean, corrupt, **asked)

    def lens(self, source: Source, **asked: Any) -> LogitLens:
        """Read what each layer would predict; see `attnx.study.experiments.lens`."""
        from attnx.study.experiments import lens

        return lens(self, source, **asked)

    def attribute(self, source: Source, **asked: Any) -> Attribution:
        """Decompose a logit into what each part of the model adds to it; see `attnx.study.experiments.attribute`."""
        from attnx.study.experiments import attribute

        return attribute(self, source, **asked)

    def _layers(self, layers: Any) -> Collection[int] | None:
        """Layer numbers, with negative ones counted from the end."""
        found = layers_of(layers)
        if found is None or min(found, default=0) >= 0:
            return found
        from attnx.study.inspect_run import all_sites
        from attnx.study.layer_names import from_the_end

        return from_the_end(found, all_sites(self))

    def run(self, feed: Mapping[str, Array], wanted: Wanted) -> Run:
        """Run the graph once on a feed, tapping what is wanted."""
        from attnx.run.passes import Feed
        from attnx.run.pipeline import execute

        return execute(self, Feed(feed), wanted)


def _whole(path: Path) -> Path:
    """The absolute path of a file or folder. A link to a file is not resolved: the files beside the link count."""
    return path.resolve() if path.is_dir() else path.parent.resolve() / path.name
