"""Many texts -> traces: sorted by length, run in batches, padding masked and cut off; in the order they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from attnx.errors import RunError, UsageError
from attnx.feed import fill as feeding
from attnx.feed.inputs import fixed_length, is_past, named, takes_target
from attnx.feed.text import encode, padding
from attnx.records import QUANTITIES, STAGES, Array, Attention, Miss, Tokens, Trace
from attnx.run.kvcache import is_static, sized, slides
from attnx.run.passes import Pass, Passes, Steps
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.ort import Slot
from attnx.session.protocol import OpenModel, Wanted
from attnx.tokens.ids import pad

SIZE = 32
"""Texts in a batch."""
WINDOW = 8
"""How many batches' worth of texts are sorted by length together: more means less padding and more memory."""
BYTES = 256 << 20
"""The most bytes of matrices in one part, however many texts there are and however long."""
FEW = 2
"""Up to this many texts are run one by one: checking that a batch can be trusted costs two more runs."""
CLOSE = {"cpu": 1e-3, "cuda": 1e-2}
"""Largest difference of weights (of other arrays: relative to their size) between a text in a batch and on its own. On
a GPU the size of a batch decides how products are rounded."""
ALONE = (
    "run one by one: in a batch this model gives a text other numbers (one scale for all that is quantised), or none"
)
PADDED = "run one by one: padded to the length of others, this text cannot be trusted"
CELLS = 1 << 25
"""At most this many cells in all matrices of one batch (128 MB): long texts run in smaller batches."""


def matrix_bytes(
    model: OpenModel, quantities: Collection[str], layers: Collection[int] | None
) -> Callable[[Tokens], int]:
    """Make a function that gives the number of bytes that the matrices of a text take."""
    stages = sum(name in STAGES for name in quantities)
    heads = sum(site.heads or 1 for site in model.sites if layers is None or site.layer in layers)
    return lambda tokens: 4 * heads * stages * len(tokens) ** 2


def within(texts: Iterable[Tokens], size: Callable[[Tokens], int], most: int = SIZE * WINDOW) -> Iterator[list[Tokens]]:
    """Texts in parts of at most `most`, whose matrices take at most `BYTES` together where they are more than one."""
    part: list[Tokens] = []
    held = 0
    for tokens in texts:
        takes = size(tokens)
        if part and held + takes > BYTES:
            yield part
            part, held = [], 0
        part.append(tokens)
        held += takes
        if len(part) == most:
            yield part
            part, held = [], 0
    if part:
        yield part


def trace_many(
    model: OpenModel,
    texts: Iterable[str | Tokens],
    quantities: Collection[str],
    layers: Collection[int] | None = None,
    *,
    size: int = SIZE,
    verify: bool = True,
) -> Iterator[Trace]:
    """Trace many texts, as `Model.trace` would one by one, to float32's rounding.

    Args:
        model: The model.
        texts: Texts, or tokens; read as far ahead as a few batches need.
        quantities: Which arrays to keep.
        layers: Only sites of these layers.
        size: Texts a batch.
        verify: Make the checks that the arrays at hand allow: rows sum to 1 for every text, the others for the
            shortest and the longest text of each batch, whose result stands for all of it.

    Yields:
        A trace for each text, in the same order.

    Raises:
        UsageError: A single string instead of several texts (each letter would count as one), or a batch size below 1.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UsageError(
            f"several texts go in a list, and this is one {type(texts).__name__}", "For example: trace_many([text])."
        )
    if size < 1:
        raise UsageError(f"a batch of {size} texts", "Give 1 or more.")
    return _in_order(traces_as_run(model, texts, Wanted(layers, quantities, verify=verify), size))


def traces_as_run(
    model: OpenModel, texts: Iterable[str | Tokens], wanted: Wanted, size: int = SIZE
) -> Iterator[tuple[int, Trace]]:
    """The same as `trace_many`, in the order in which the batches are run: while one is looked at, the next ones run.

    Yields:
        The position of a text, from 0, and its trace.
    """
    tokens_of = (_tokens(model, text) for text in texts)
    before = 0
    for window in within(tokens_of, matrix_bytes(model, wanted.quantities, wanted.layers), size * WINDOW):
        if together(model):
            for batch in run(model, window, wanted, size):
                yield from zip((before + place for place in batch.places), batch.traces(), strict=True)
        else:
            yield from ((before + at, _single(model, tokens, wanted)) for at, tokens in enumerate(window))
        before += len(window)


def _in_order(traces: Iterator[tuple[int, Trace]]) -> Iterator[Trace]:
    """Traces in the order of their texts."""
    waiting: dict[int, Trace] = {}
    due = 0
    for at, trace in traces:
        waiting[at] = trace
        while due in waiting:
            yield waiting.pop(due)
            due += 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts that were run together, padded on the right to the length of the longest."""

    model: str
    device: str
    places: tuple[int, ...]
    """Position of each among the texts."""
    tokens: tuple[Tokens, ...]
    """Without padding."""
    attentions: tuple[Attention, ...]
    """Arrays [B,...,n,n] with padding: rows and keys beyond a text's own length mean nothing."""
    misses: tuple[Miss, ...]
    notes: tuple[str, ...]

    def traces(self) -> Iterator[Trace]:
        """Each text by itself, its arrays cut out of the batch's."""
        parts: list[tuple[Attention, dict[str, Array]]] = [
            (a, {n: array for n in QUANTITIES if (array := getattr(a, n)) is not None}) for a in self.attentions
        ]
        for at, tokens in enumerate(self.tokens):
            attentions = tuple(_cut(attention, arrays, at, len(tokens)) for attention, arrays in parts)
            notes = tuple(dict.fromkeys((*tokens.notes, *self.notes)))
            yield Trace(self.model, self.device, tokens, None, attentions, misses=self.misses, notes=notes)


def together(model: OpenModel) -> bool:
    """Whether several texts can be run together."""
    return _how(model) is not None


def run(model: OpenModel, texts: Sequence[Tokens], wanted: Wanted, size: int = SIZE) -> Iterator[Batch]:
    """Run texts in batches of like length, where the model allows that (`together`), on the CPU several at once.

    Which texts share a batch, and in which order batches come, follows from their lengths and their order alone.
    """
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    stages = sum(name in STAGES for name in wanted.quantities) or 1
    cut = _batches(order, [len(tokens) for tokens in texts], size, _matrices(model) * stages, pads=bool(_how(model)))

    def one(part: Sequence[int]) -> Batch:
        return _run(model, part, [texts[at] for at in part], wanted)

    for batch in _shared(model, one, order, cut):
        yield from _sound(one, batch)


def _shared(
    model: OpenModel, one: Callable[[Sequence[int]], Batch], order: Sequence[int], parts: Iterator[list[int]]
) -> Iterator[Batch]:
    """Run batches, or each text alone where few are given or where the model does not run several together."""
    if len(order) <= FEW:
        yield from (one([at]) for at in order)
        return
    shared = model.sessions.batches is not False and (yield from _in_lanes(model, one, parts))
    if not shared:
        for single in (one([at]) for at in order):
            yield replace(single, notes=(*single.notes, ALONE))


def _sound(one: Callable[[Sequence[int]], Batch], batch: Batch) -> Iterator[Batch]:
    """A batch; or its texts one by one, where a site fails its checks beside padding and not without it.

    Rows of padding may see nothing, and what a softmax makes of that (NaN) spreads to the others in later layers.
    """
    doubted = _doubted(batch)
    if not doubted or len({len(tokens) for tokens in batch.tokens}) == 1:
        yield batch
        return
    shortest = min(range(len(batch.places)), key=lambda at: len(batch.tokens[at]))
    first = one([batch.places[shortest]])
    if _doubted(first) >= doubted:
        yield batch
        return
    for at, place in enumerate(batch.places):
        single = first if at == shortest else one([place])
        yield replace(single, notes=(*single.notes, PADDED))


def _doubted(batch: Batch) -> set[str]:
    return {attention.site.label for attention in batch.attentions if not attention.trusted}


def _in_lanes(
    model: OpenModel, one: Callable[[Sequence[int]], Batch], parts: Iterator[list[int]]
) -> Generator[Batch, None, bool]:
    """Run batches, on the CPU several at once, and one more while a batch is looked at: no lane waits for that.

    Args:
        model: The model.
        one: Runs a batch.
        parts: Which texts share one, the shortest first.

    Yields:
        The first, which shows whether texts can share one unless that is known; then from the longest texts on.

    Returns:
        Whether they can; if not, nothing was yielded.
    """
    sessions = model.sessions
    first = next(parts)
    rest = reversed(list(parts))  # the longest texts first: what runs last, beside nothing else, is short
    unsure = sessions.batches is None and len(first) > 1
    alone = [one([first[at]]) for at in (0, -1)] if unsure else [one(first)]
    lanes = sessions.lanes() if alone[0].device == "cpu" else 1
    ahead: deque[Future[Batch]] = deque()
    pool = ThreadPoolExecutor(lanes, "attnx-batch")
    try:
        # One more than run at once; beside a batch that must show something first, as many as there are cores left.
        begun = 0 if lanes == 1 else lanes - 1 if unsure else lanes + 1
        ahead.extend(pool.submit(one, part) for part in islice(rest, begun))
        done = _agreeing(one, first, alone) if unsure else alone[0]
        if unsure:
            sessions.batches = done is not None
        if done is None:
            return False
        ahead.extend(pool.submit(one, part) for part in islice(rest, 0 if lanes == 1 else lanes + 1 - begun))
        yield done
        for part in rest:
            if lanes > 1:
                ahead.append(pool.submit(one, part))
            yield ahead.popleft().result() if ahead else one(part)
        while ahead:
            yield ahead.popleft().result()
        return True
    finally:
        pool.shutdown(cancel_futures=True)


def _agreeing(one: Callable[[Sequence[int]], Batch], part: Sequence[int], alone: Sequence[Batch]) -> Batch | None:
    """A batch, if its shortest and its longest text give the same in it as on their own; else None.

    Some graphs use one scale for all rows of a batch (dynamic quantisation), and some were exported for a batch of
    one and take no more.
    """
    try:
        batch = one(part)
    except RunError:
        return None
    traces = list(batch.traces())
    limit = CLOSE[batch.device.partition(":")[0]]
    for at, single in zip((0, -1), alone, strict=True):
        for got, want in zip(traces[at].attentions, single.attentions, strict=True):
            names = ("weights",) if got.weights is not None else QUANTITIES
            if any(not _alike(getattr(got, name), getattr(want, name), limit) for name in names):
                return None
    return batch


def _alike(one: Array | None, other: Array | None, limit: float) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and np.allclose(one, other, limit, limit, equal_nan=True)


def _single(model: OpenModel, tokens: Tokens, wanted: Wanted) -> Trace:
    return execute(model, Prompt(tokens=tokens), wanted)


def _tokens(model: OpenModel, text: str | Tokens) -> Tokens:
    return text if isinstance(text, Tokens) else encode(model, text)


def _matrices(model: OpenModel) -> int:
    return sum(site.heads or 1 for site in model.sites) or 1


def _how(model: OpenModel) -> bool | None:
    """Whether texts of different lengths may share a batch (if not, only equal lengths do); None: one at a time."""
    slots = model.slots()
    alone = (
        model.encoder is not None
        or takes_target(slots)
        or fixed_length(slots) is not None
        or (any(is_past(slot) for slot in slots) and not grows(slots))
        or any(slot.shape and isinstance(slot.shape[0], int) for slot in slots)
        or any(site.kind != "self" or site.moved for site in model.sites)
    )
    if alone:
        return None
    return any(named(slot, "mask") for slot in slots) or all(site.causal is True for site in model.sites)


def grows(slots: Sequence[Slot]) -> bool:
    """Whether a model's caches begin empty and grow, with a row for each text."""
    shapes = [slot.shape for slot in slots if is_past(slot)]
    return not is_static(slots) and not slides(slots) and all(not isinstance(shape[0], int) for shape in shapes)


def _batches(order: Sequence[int], lengths: Sequence[int], size: int, matrices: int, pads: bool) -> Iterator[list[int]]:
    """Cut texts that are sorted by length into batches."""
    part: list[int] = []
    for at in order:
        cells = (len(part) + 1) * matrices * lengths[at] ** 2
        if part and (len(part) == size or cells > CELLS or (not pads and lengths[at] != lengths[part[0]])):
            yield part
            part = []
        part.append(at)
    if part:
        yield part


def _run(model: OpenModel, places: Sequence[int], texts: Sequence[Tokens], wanted: Wanted) -> Batch:
    """One batch."""
    return execute(model, Texts(tuple(places), tuple(texts)), wanted)


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts that are run together, in one pass."""

    places: tuple[int, ...]
    tokens: tuple[Tokens, ...]

    def encode(self, model: OpenModel) -> Sequence[Tokens]:
        """The tokens, padded to one length."""
        if len({len(tokens) for tokens in self.tokens}) == 1:
            return self.tokens
        return pad(self.tokens, *padding(model))

    def feed(self, model: OpenModel, tokens: Sequence[Tokens], wanted: Wanted) -> Passes[Batch]:
        """The one pass."""
        return Passes(self._steps(model, tokens, wanted))

    def _steps(self, model: OpenModel, tokens: Sequence[Tokens], wanted: Wanted) -> Steps[Batch]:
        needs = feeding.batch_of(tokens)
        if any(is_past(slot) for slot in model.slots()):
            needs = sized(needs, model)
        done = yield Pass(model, feeding.derive(model.slots(), needs), wanted, many=True)
        return Batch(model.name, done.device, self.places, self.tokens, done.attentions, done.misses, done.notes)


def _cut(attention: Attention, arrays: Mapping[str, Array], at: int, length: int) -> Attention:
    """One text's arrays out of a batch, without the padding."""
    cut: dict[str, Array] = {
        name: array[at : at + 1, :, :length, :length] if name in STAGES else array[at : at + 1, :, :length]
        for name, array in arrays.items()
    }
    return Attention(attention.site, **cut, origin=attention.origin, checks=attention.checks)
