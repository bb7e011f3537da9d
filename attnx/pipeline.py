"""The contents page: text -> tokens -> feed -> session -> trace, and model.onnx -> graph -> sites -> taps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx import feed as feeding
from attnx import trace as tracing
from attnx.errors import InputError, UsageError
from attnx.records import QUANTITIES, Array, Attention, Miss, Site, Tokens, Trace
from attnx.session import Session, Slot, open_session

if TYPE_CHECKING:
    from attnx.sites import Found
    from attnx.taps import Tapped

SHOWN: tuple[str, ...] = ("query", "key", "value", "scores", "scaled", "capped", "masked", "weights", "context")


def open(model: str | Path = "minilm", *, device: str = "auto", tokenizer: str | Path | None = None) -> Model:
    """Open a model.

    Args:
        model: An .onnx file, a folder as on the Hub (config.json, tokenizer.json, model.onnx or onnx/model.onnx), or
            the name of a bundled model.
        device: auto, cpu, cuda or cuda:N.
        tokenizer: A tokenizer file or folder, where it is not beside the model.

    Raises:
        ModelError: There is no such model, or it cannot be read.
    """
    from attnx.models import locate

    place = locate(str(model))
    return Model(place.name, place.path, device=device, tokenizer=Path(tokenizer) if tokenizer else place.tokenizer)


class Model:
    """An opened model. Nothing is loaded before it is needed.

    Attributes:
        name: As it is shown.
        path: The .onnx file.
    """

    def __init__(self, name: str, path: Path, *, device: str = "auto", tokenizer: Path | None = None) -> None:
        self.name, self.path = name, path
        self._device, self._tokenizer_place = device, tokenizer
        self._found: dict[tuple[bool, ...], Found] = {}
        self._sessions: dict[Any, tuple[Session, Tapped]] = {}

    # model.onnx -> graph -> sites

    def find(self, inputs: Mapping[str, Array] | None = None) -> Found:
        """The model's sites; `inputs` decides which branch of an If runs."""
        from attnx.branches import chooser

        choose = chooser(self.path, inputs)
        key = choose.key
        if key not in self._found:
            from attnx.sites import find

            self._found[key] = find(self.path, choose.choose if inputs is not None else None)
        return self._found[key]

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every attention computation found, in execution order."""
        return self.find().sites

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

        return load_tokenizer(self._tokenizer_place or self.path.parent)

    def encode(self, text: str, pair: str | None = None) -> Tokens:
        """Text -> tokens, cut at the model's limit (a note says so)."""
        tokens: Tokens = self.tokenizer.encode(text, pair)
        return tokens

    # tokens -> feed -> session -> trace

    def trace(
        self,
        text: str | None = None,
        *,
        pair: str | None = None,
        tokens: Tokens | None = None,
        inputs: Mapping[str, Array] | None = None,
        layers: Collection[int] | None = None,
        quantities: Collection[str] = QUANTITIES,
        outputs: bool = False,
        verify: bool = True,
        verify_outputs: bool = False,
        required: bool = True,
    ) -> Trace:
        """Run the model once and read what its sites attend to.

        Args:
            text: What to run on; or
            tokens: tokens made before; or
            inputs: an array for each graph input.
            pair: A second segment.
            layers: Only sites of these layers; all where None.
            quantities: Which arrays to keep ("weights", "scores", ...). Fewer is faster.
            outputs: Also give the model's own outputs.
            verify: Check the arrays against one another.
            verify_outputs: Also run the model as it is and compare its own outputs; twice the time.

            required: Fail where the model has no attention; else the trace is empty.

        Raises:
            InputError: The text, tokens or inputs cannot be fed, or there is no attention.
            RunError: The run failed.
        """
        if text is not None:
            tokens = self.encode(text, pair)
        if tokens is None and inputs is None:
            raise UsageError("there is nothing to run on", "Give a text, tokens or inputs.")
        found = self.find(inputs)
        sites = [s for s in found.sites if layers is None or s.layer in layers]
        if not sites and (required or found.sites):
            raise _no_sites(found, layers)
        session, tapped = self.session(found, sites, quantities, outputs or verify_outputs)
        if tokens is not None:
            feed = feeding.derive(session.inputs, feeding.batch_of([tokens]), inputs)
        else:
            feed = feeding.check(session.inputs, inputs or {})
        values = tracing.run(session, tapped, feed)
        attentions = tracing.read(sites, tapped, values, quantities, verify)
        shown = tokens if tokens is not None else self.name_tokens(feed, attentions)
        own = {name: values[name] for name in tapped.outputs} if outputs else {}
        notes = shown.notes
        if verify_outputs:
            notes = (*notes, *tracing.compare_outputs(self._plain(found), feed, {n: values[n] for n in tapped.outputs}))
        return Trace(self.name, session.device, shown, None, attentions, own, found.misses, notes)

    def _plain(self, found: Found) -> Session:
        """A session on the model without taps (CUDA-only operators decomposed all the same)."""
        from attnx.taps import tap

        tapped = tap(found, {})
        return open_session(tapped.model, tapped.folder, self._device)

    def session(
        self, found: Found, sites: Sequence[Site], quantities: Collection[str], outputs: bool
    ) -> tuple[Session, Tapped]:
        """A session on the model with the taps that these sites and quantities need; kept for the next run."""
        from attnx.taps import places_for, tap

        wanted = {s.index: places_for(s, quantities) for s in sites}
        key = (id(found), tuple((i, tuple(sorted(q))) for i, q in wanted.items()), outputs)
        if key not in self._sessions:
            tapped = tap(found, wanted, outputs=None if outputs else ())
            self._sessions[key] = (open_session(tapped.model, tapped.folder, self._device), tapped)
        return self._sessions[key]

    def slots(self) -> list[Slot]:
        """The model's inputs."""
        from attnx.graph.signature import signature

        return [Slot(*s) for s in signature(self.find().graph)]

    def name_tokens(self, feed: Mapping[str, Array], attentions: Sequence[Attention]) -> Tokens:
        """Tokens for inputs that came as arrays: the ids' pieces where a tokenizer is at hand, else positions."""
        from attnx.tokens import from_ids

        weights = next((a.weights for a in attentions if a.weights is not None), None)
        length = weights.shape[2] if weights is not None else 1
        ids = next((a for a in feed.values() if a.ndim == 2 and a.dtype.kind == "i" and a.shape[1] == length), None)
        return from_ids(ids[0] if ids is not None else np.arange(length))


def _no_sites(found: Found, layers: Collection[int] | None) -> InputError | UsageError:
    if layers is not None and found.sites:
        have = sorted({s.layer for s in found.sites if s.layer is not None})
        return UsageError(
            f"there is no layer {', '.join(map(str, layers))}", f"The model has layers {have[0]} to {have[-1]}."
        )
    reasons = "; ".join(f"{m.node} ({m.op}): {m.reason}" for m in found.misses[:3])
    return InputError(
        f"no attention was found in {found.loaded.path.name}" + (f"; near misses: {reasons}" if reasons else ""),
        "`attnx sites MODEL` lists what was looked at and why it was refused.",
    )
