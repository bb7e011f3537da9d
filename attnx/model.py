"""The contents page: text -> tokens -> feed -> session -> trace, and model.onnx -> graph -> sites -> taps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.errors import InputError, ModelError, UsageError
from attnx.feed import fill as feeding
from attnx.feed import lookups
from attnx.feed.inputs import is_ids, looked_up
from attnx.records import QUANTITIES, Array, Miss, Site, Sites, Tokens, Trace
from attnx.run import read as tracing
from attnx.run.arguments import inputs_of, layers_of, path_of, positions_of, quantities_of, tokens_of, whole_of
from attnx.session import memory
from attnx.session.model_summary import said
from attnx.session.protocol import Run, Wanted
from attnx.session.session_pool import Opening
from attnx.taps.holding import must_hold
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.interventions.perform import Results
    from attnx.interventions.plan import Step
    from attnx.measure.heads import HeadTable
    from attnx.run.generate import Plan
    from attnx.session.model_summary import Inventory
    from attnx.session.ort import Session, Slot
    from attnx.sites.recognise import Found

SHOWN: tuple[str, ...] = ("query", "key", "value", "scores", "scaled", "capped", "masked", "weights", "context")


def open(model: str | Path = "minilm", *, device: str = "auto", tokenizer: str | Path | None = None) -> Model:
    """Open a model.

    Args:
        model: An .onnx file, a folder as on the Hub (config.json, tokenizer.json, model.onnx or onnx/model.onnx, or an
            encoder_model.onnx and its decoder_model*.onnx), a bundled name, or ORG/NAME in the Hub's cache.
        device: auto, cpu, cuda or cuda:N.
        tokenizer: A tokenizer file or folder, where it is not beside the model.

    Raises:
        ModelError: There is no such model, or it cannot be read.
    """
    from attnx.catalog.models import locate
    from attnx.session.device import parse_device

    path_of(model, "a model")
    at = locate(str(model or ""))
    parse_device(device)
    place = path_of(tokenizer, "a tokenizer") if tokenizer else at.tokenizer
    return Model(at.name, at.path, device=device, tokenizer=place, encoder=at.encoder, with_past=at.with_past)


class Model:
    """An opened model. Nothing is loaded before it is needed.

    Attributes:
        name: As it is shown.
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
        self.opening = Opening(path, device)

    @cached_property
    def encoder(self) -> Model | None:
        """The encoder, where it is a file of its own."""
        return self._beside(self._encoder)

    @cached_property
    def with_past(self) -> Model | None:
        """The decoder that continues from a cache, where that is a file of its own."""
        return self._beside(self._with_past)

    def elsewhere(self) -> dict[str, Any]:
        """What opens this model again in another process: arguments of `Model` but for the device."""
        named = {"tokenizer": self._tokenizer_place, "encoder": self._encoder, "with_past": self._with_past}
        places = {name: place.resolve() if place is not None else None for name, place in named.items()}
        return {"name": self.name, "path": self.path.resolve(), **places}

    def _beside(self, path: Path | None) -> Model | None:
        return Model(self.name, path, device=self.device, tokenizer=self._tokenizer_place) if path else None

    # model.onnx -> graph -> sites

    def find(self, inputs: Mapping[str, Array] | None = None) -> Inventory:
        """The model's sites, inputs and outputs; `inputs` decides which branch of an If runs."""
        return self.opening.find(inputs)

    def graph(self, inputs: Mapping[str, Array] | None = None) -> Found:
        """The model's graph and sites, read from its file."""
        return self.opening.graph(self.opening.find(inputs).branch)

    def prepare(
        self, quantities: Collection[str] = QUANTITIES, layers: Collection[int] | None = None, *, rows: bool = False
    ) -> None:
        """Begin to open what `trace` (`rows`) will need of these layers, while the caller does other things."""
        if self._encoder is None:
            self.opening.prepare(quantities, layers, rows)

    def plain(self, inputs: Mapping[str, Array] | None = None) -> Session:
        """A session on the model without taps: what it costs by itself."""
        return self.opening.plain(self.opening.find(inputs))

    @property
    def sites(self) -> Sites:
        """Every attention computation found, in execution order."""
        return Sites(self.find().sites)

    @property
    def encoder_sites(self) -> tuple[Site, ...]:
        """The sites of the encoder, where it is a file of its own."""
        return self.encoder.sites if self.encoder is not None else ()

    @property
    def misses(self) -> tuple[Miss, ...]:
        """What looked like attention and was refused, with the reason."""
        return self.find().misses

    # text -> tokens

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer (attnx.tokens.Tokenizer).

        Raises:
            ModelError: There is none beside the model.
        """
        from attnx.tokens import load_tokenizer

        try:
            return load_tokenizer(self._tokenizer_place or self.path.parent)
        except ModelError:
            slots = [*self.slots(), *(self.encoder.slots() if self.encoder is not None else ())]
            if self._tokenizer_place is None and not any(map(is_ids, slots)):
                raise ModelError(
                    f"{self.name} takes no text: its inputs are {'; '.join(s.describe() for s in slots)}",
                    Wording(
                        "[Give [a picture or a sound (<image>, <audio>), or else ]arrays: [<values=>, or ]<inputs=> "
                        "(see <model.slots()>).|Choose a model that takes a text: here is nothing else to give it.]"
                    ),
                ) from None
            raise

    def encode(self, text: str, pair: str | None = None) -> Tokens:
        """Text -> tokens, cut at the model's limit (a note says so)."""
        for given in (text, pair):
            if not isinstance(given, str | None):
                raise UsageError(
                    f"a text is a str, and this is {type(given).__name__}",
                    "Several texts: trace_many([...]); arrays for the graph's inputs: trace(inputs={...}).",
                )
        tokens: Tokens = self.tokenizer.encode(text, pair)
        return tokens

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
        """Run the model and read what its sites attend to.

        Args:
            text: What to run on; or
            tokens: tokens made before; or
            inputs: an array for each graph input (beside a text: for those that a text cannot fill).
            pair: A second segment.
            target: What the decoder of an encoder-decoder says.
            image: A picture file.
            audio: A WAV file.
            generate: Let the decoder write this many tokens, and show them too.
            layers: Only sites of these layers; all where None.
            quantities: Which arrays to keep ("weights", "scores", ...). Fewer is faster.
            outputs: Also give the model's own outputs.
            verify: Check the arrays against one another.
            verify_outputs: Also run the model as it is and compare its own outputs; twice the time.
            required: Fail where the model has no attention; else the trace is empty.

        Raises:
            InputError: What is given cannot be fed, or there is no attention.
            RunError: The run failed.
        """
        from attnx.run.runner import Given, follow

        wanted = Wanted(layers_of(layers), quantities_of(quantities), outputs, verify, verify_outputs, required)
        told = tokens_of(tokens), inputs_of(inputs), path_of(image, "a picture"), path_of(audio, "a sound")
        given = Given(self.encode(text, pair) if text is not None else told[0], target, *told[1:])
        return follow(self, given, generate, wanted)

    def trace_many(
        self,
        texts: Iterable[str | Tokens],
        *,
        layers: Collection[int] | None = None,
        quantities: Collection[str] = ("masked", "weights"),
        size: int = 32,
        verify: bool = True,
    ) -> Iterator[Trace]:
        """As `trace` for each text, in batches of texts of like length; in the order given.

        Raises:
            UsageError: One text in place of several: each of its letters would be taken for one.
        """
        from attnx.run.batch import trace_many

        if isinstance(texts, str | bytes):
            raise UsageError(
                f"several texts are a list, and this is one {type(texts).__name__}", "For example: trace_many([text])."
            )

        return trace_many(
            self, texts, quantities_of(quantities), layers_of(layers), size=whole_of(size, "a batch"), verify=verify
        )

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
        """As `trace`, but only the rows of the queries at `positions`, gathered in the graph: no matrix leaves it.

        Raises:
            InputError: A position that is not there.
        """
        from attnx.run.query_rows import rows

        told = positions_of(positions), quantities_of(quantities), layers_of(layers)
        return rows(self, self._tokens(text, tokens), *told, verify)

    def heads(
        self, text: str | None = None, *, tokens: Tokens | None = None, layers: Collection[int] | None = None
    ) -> HeadTable:
        """What `measure.describe_heads` says of `trace`, reduced in the graph: for texts whose matrices are large."""
        from attnx.study.head_stats import heads

        return heads(self, {"tokens": self._tokens(text, tokens)}, layers_of(layers))[0]

    def run_with(
        self,
        steps: Sequence[Step],
        given: str | Mapping[str, Any],
        other: str | Mapping[str, Any] | None = None,
        *,
        outputs: Collection[str] | None = None,
    ) -> Results:
        """Run the model with interventions; see `attnx.interventions.perform.run_with`."""
        from attnx.interventions.perform import run_with

        return run_with(self, steps, given, other, outputs=outputs)

    def _tokens(self, text: str | None, tokens: Tokens | None) -> Tokens:
        made = tokens_of(tokens) if text is None else self.encode(text)
        if made is None:
            raise UsageError("there is nothing to run on", "Give a text or tokens.")
        return made

    def run(self, feed: Mapping[str, Array], wanted: Wanted, *, many: bool = False) -> Run:
        """Run the graph once on a feed, tapped for what is wanted; `many`: on a batch, one of many."""
        found = self.find(feed)
        sites = [s for s in found.sites if wanted.takes(s)]
        heads = {s.index: h for s in sites if (h := (wanted.heads or {}).get(-1 if s.layer is None else s.layer))}
        if not sites and (wanted.required or (found.sites and wanted.quantities)):
            raise _no_sites(self.path, found, wanted.layers)
        if not sites and not (wanted.outputs or wanted.verify_outputs):
            # Nothing is asked of the model: a graph without outputs cannot even be loaded.
            noted = found.notes(self.opening.processor)
            return Run((), feeding.check(found.inputs, feed), {}, found.misses, noted, "cpu")
        if not (wanted.outputs or wanted.verify_outputs):
            must_hold(sites, wanted.quantities)
        session, tapped = self.opening.session(
            found, sites, wanted.quantities, wanted.outputs or wanted.verify_outputs, many=many, heads=heads
        )
        lookups.check(self, found, feed)
        feed = feeding.check(session.inputs, feed)
        memory.check(sites, feed, wanted.quantities)
        values = tracing.run(session, tapped, feed)
        sample = (0, -1) if many else None  # a batch is sorted: its shortest and its longest text
        attentions = tracing.read(sites, tapped, values, wanted.quantities, wanted.verify, sample=sample, heads=heads)
        own = {name: values[name] for name in tapped.outputs}
        notes = said(found, tapped, self.opening.processor)
        if wanted.verify_outputs:
            notes += tracing.compare_outputs(self.opening.plain(found), feed, own)
        return Run(attentions, feed, own if wanted.outputs else {}, found.misses, notes, session.device)

    def slots(self) -> list[Slot]:
        """The model's inputs."""
        found = self.find()
        return looked_up(found.inputs, found.rows)


def _no_sites(path: Path, found: Inventory, layers: Collection[int] | None) -> InputError | UsageError:
    if layers is not None and found.sites:
        have = sorted({s.layer for s in found.sites if s.layer is not None})
        return UsageError(
            f"there is no layer {', '.join(map(str, layers))}", f"The model has layers {have[0]} to {have[-1]}."
        )
    if found.note is not None:
        return InputError(
            f"no attention was found in {path.name}. It is {found.note}",
            "There is nothing to show; a recurrent model with attention over it (Bahdanau, Luong) can be shown.",
        )
    reasons = "; ".join(f"{m.node} ({m.op}): {m.reason}" for m in found.misses[:3])
    return InputError(
        f"no attention was found in {path.name}" + (f"; near misses: {reasons}" if reasons else ""),
        Wording("<model.find()> lists what was looked at and why it was refused."),
    )
