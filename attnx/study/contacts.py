"""Run a protein through a model: which residues its attention predicts to be in contact, and how many really are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attnx.errors import InputError, ModelError, UnsupportedError, UsageError
from attnx.measure import contacts as measure
from attnx.notes import merged
from attnx.numerals import counted
from attnx.records import Array, Axis, Measurement, Site, Tokens, Trace
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.crossing import is_two_sided
from attnx.study.request import Head
from attnx.study.selection import trusted
from attnx.wording import Wording

AT_ONCE = 1 << 29
"""Bytes of matrices fetched in one run; for a long protein the model is run several times, for some layers each."""
GAPS = "-.*"
"""Residue symbols other than letters: gaps of an alignment, a stop."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """How many of the strongest pairs are real contacts (precision)."""

    heads: Measurement
    """[L,H,3]: each head's precision on the L, L/2 and L/5 strongest pairs. The best head is chosen after the fact."""
    mean: Array
    """float64 [3]: precision of the displayed map."""
    chance: float
    """The share of real contacts among all pairs: the precision of a random map."""
    contacts: int
    """Real contacts among the pairs that count."""
    near: int
    """Real contacts of residues that are too close in the sequence to count."""
    real: Array
    """bool [N,N]."""


@dataclass(frozen=True, slots=True, eq=False)
class Contacts:
    """The predicted contacts of one protein."""

    trace: Trace
    """Without arrays."""
    residues: tuple[str, ...]
    """Letters."""
    places: tuple[int, ...]
    """The token of each."""
    map: Measurement
    """[N,N], the mean over the chosen heads."""
    where: str
    """The names of those heads."""
    apart: int
    judged: Judged | None
    notes: tuple[str, ...]

    def named(self, at: int) -> str:
        """A residue by letter and number, from 1: "K12"."""
        return f"{self.residues[at]}{at + 1}"

    def strongest(self, most: int) -> list[tuple[int, int]]:
        """The pairs with the largest scores."""
        return measure.strongest(self.map.values, self.apart, most)


def contacts(
    model: OpenModel,
    prompt: Prompt,
    heads: Sequence[Head] = (),
    layers: Sequence[int] | None = None,
    *,
    gold: Path | None = None,
    start: int = 1,
    apart: int = measure.APART,
) -> Contacts:
    """Run a protein and compute its contact map.

    Args:
        model: A protein model that reads residue by residue.
        prompt: The protein.
        heads: Heads whose mean is the map; a head without a layer means that head in every layer. Empty for all.
        layers: Only these layers.
        gold: A file with the real contacts; see `measure.contacts.read_gold`.
        start: The number of the first residue in that file.
        apart: How many positions apart two residues must be to count.

    Raises:
        UsageError: No such head or layer, or a model with two sides.
        InputError: No protein, or one too short for any pair that far apart.
    """
    if is_two_sided(model):
        raise UsageError(
            f"{model.name} has an encoder and a decoder, and contacts are read off one text's attention to itself",
            "Open the encoder's file by itself.",
        )
    sites = [site for site in model.sites if site.kind == "self"]
    chosen = _chosen(sites, heads, layers)
    picks: dict[int, list[int]] | None = None
    if heads and gold is None:  # else every head is judged by the contacts, whichever heads make the map
        picks = {}
        for layer, head in chosen:
            picks.setdefault(layer, []).append(head)
    only = tuple(picks) if picks is not None else layers if gold is None else None
    wanted = Wanted(only, ("masked", "weights"), kinds=("self",), heads=picks)
    maps = _Maps()
    real: Array | None = None
    for trace in maps.runs(model, prompt, wanted, sites):
        if maps.first is trace:
            maps.places, maps.letters = _residues(model, trace.tokens)
            if not len(measure.pairs(len(maps.places), apart)[0]):
                there = counted(len(maps.places), "residue")
                raise InputError(
                    f"no two residues lie {counted(apart, 'position')} apart: the protein has {there}",
                    Wording("Give a longer one[, or a smaller <apart>]."),
                )
            real = None if gold is None else measure.read_gold(gold, maps.letters, start)
        for label, layer, head, found in maps.of(trace, picks):
            if real is not None:
                maps.rates.setdefault(label, {})[head] = measure.precision(found, real, apart)
            if (layer, head) in chosen or (not heads and (layers is None or layer in layers)):
                maps.add(found, f"{label} H{head}")
    made = maps.mean()
    where = " ".join(maps.used) if heads else f"mean of {counted(len(maps.used), 'head')}"
    judged = None if real is None else _judged(maps.rates, made.values, real, apart)
    assert maps.first is not None
    bare = replace(maps.first, attentions=(), sides={}, notes=maps.notes)
    return Contacts(bare, maps.letters, tuple(maps.places), made, where, apart, judged, maps.notes)


class _Maps:
    """Accumulates the results of the runs of one protein."""

    def __init__(self) -> None:
        self.first: Trace | None = None
        self.places: list[int] = []
        self.letters: tuple[str, ...] = ()
        self.rates: dict[str, dict[int, Array]] = {}
        """Precisions [3] by layer and head."""
        self.used: list[str] = []
        self.notes: tuple[str, ...] = ()
        self._sum: Array | float = 0.0

    def runs(self, model: OpenModel, prompt: Prompt, wanted: Wanted, sites: Sequence[Site]) -> Iterator[Trace]:
        """Run the layers in groups with at most `AT_ONCE` bytes of matrices; only trusted sites are kept."""
        length = len(next(iter(prompt.encode(model)), ()))
        for group in _groups([site for site in sites if wanted.takes(site)], length):
            try:
                trace, doubts = trusted(execute(model, prompt, replace(wanted, layers=group)))
            except UnsupportedError as error:
                self.notes = merged(self.notes, [error.message])
                continue
            self.first = self.first or trace
            self.notes = merged(self.notes, trace.notes, doubts)
            yield trace

    def of(self, trace: Trace, picks: Mapping[int, Sequence[int]] | None) -> Iterator[tuple[str, int, int, Array]]:
        """Yield label, layer and head of each head, and its corrected map [N,N].

        Args:
            trace: A run.
            picks: By layer, the heads that were kept; None for all.

        Raises:
            UnsupportedError: The rows and columns of a site are not the protein's tokens.
        """
        inside = np.ix_(self.places, self.places)
        for label, attention in zip(trace.labels, trace.attentions, strict=True):
            weights, layer = attention.need("weights"), -1 if attention.site.layer is None else attention.site.layer
            if weights.shape[2:] != (len(trace.tokens),) * 2 or attention.site.moved:
                raise UnsupportedError(
                    f"the rows and columns of {label} are not the tokens of the protein",
                    Wording("<model.trace()> shows what they are."),
                )
            for at, head in enumerate(range(weights.shape[1]) if picks is None else picks[layer]):
                yield label, layer, head, measure.corrected(weights[0, at][inside])

    def add(self, found: Array, name: str) -> None:
        """Add a head's map to the mean."""
        self._sum = self._sum + found
        self.used.append(name)

    def mean(self) -> Measurement:
        """The mean of the maps.

        Raises:
            UnsupportedError: There is none.
        """
        if not self.used:
            raise UnsupportedError("none of the heads can be trusted, so there is no map", "; ".join(self.notes))
        names = tuple(f"{letter}{at}" for at, letter in enumerate(self.letters, 1))
        axes = (Axis("residue", names), Axis("with residue", names))
        values = np.asarray(self._sum / len(self.used))
        return Measurement("contacts", "", axes, values, (None, None), measure.SOURCE, measure.FORMULA)


def _groups(sites: Sequence[Site], length: int) -> list[tuple[int, ...] | None]:
    """The layers to run together, in order; all at once if a layer is not known."""
    layers = [site.layer for site in sites if site.layer is not None]
    if len(layers) < len(sites) or not sites:
        return [None]
    out: list[list[int]] = []
    size = 0
    for site, layer in zip(sites, layers, strict=True):
        own = 8 * (site.heads or 1) * length * length  # masked scores and weights, 4 bytes each
        size = size + own if out and size + own <= AT_ONCE else own
        if size == own:
            out.append([])
        out[-1].append(layer)
    return [tuple(group) for group in out]


def _chosen(sites: Sequence[Site], heads: Sequence[Head], layers: Sequence[int] | None) -> list[tuple[int, int]]:
    """Layer and head of the named heads."""
    have = {site.layer: site for site in sites if site.layer is not None}
    for asked in (*(layers or ()), *(head.layer for head in heads if head.layer is not None)):
        if asked not in have:
            hint = f"The model has layers {min(have)} to {max(have)}." if have else "Its layers are not known."
            raise UsageError(f"there is no layer {asked}", hint)
    out = []
    for head in heads:
        for layer, site in have.items():
            if head.layer not in (None, layer) or (layers is not None and layer not in layers):
                continue
            if site.heads is not None and head.head >= site.heads:
                raise UsageError(f"there is no head {head.head}", f"{site.label} has heads 0 to {site.heads - 1}.")
            out.append((layer, head.head))
    if heads:
        return list(dict.fromkeys(out))
    return [(layer, -1) for layer in have if layers is None or layer in layers]


def _residues(model: OpenModel, tokens: Tokens) -> tuple[list[int], tuple[str, ...]]:
    """The tokens that are residues, masked ones included, and their letters: all but those around the protein.

    Raises:
        InputError: A token of several letters.
    """
    try:
        mask = model.tokenizer.roles.get("mask_token")
    except ModelError:
        mask = None
    places, letters = [], []
    for at, (a, b) in enumerate(tokens.offsets):
        letter = (tokens.text[a:b] if b > a else tokens.pieces[at]).strip().strip("▁")
        if not tokens.mask[at] or (tokens.special[at] and letter != mask):
            continue
        if letter != mask and not (len(letter) == 1 and (letter.isalpha() or letter in GAPS)):
            raise InputError(
                f"{letter[:40]!r} is a token of the text, and contacts are between single residues",
                "Give a protein to a protein model such as ESM; some tokenizers want spaces between letters: M K T A.",
            )
        places.append(at)
        letters.append(letter)
    return places, tuple(letters)


def _judged(rates: Mapping[str, Mapping[int, Array]], shown: Array, real: Array, apart: int) -> Judged:
    """Precisions by layer and head, of the displayed map, and by chance."""
    i, j = measure.pairs(len(real), apart)
    count = 1 + max(head for own in rates.values() for head in own)
    values = np.full((len(rates), count, len(measure.SHARES)), np.nan)
    for at, own in enumerate(rates.values()):
        for head, found in own.items():
            values[at, head] = found
    names = tuple("L" if share == 1 else f"L/{share}" for share in measure.SHARES)
    axes = (
        Axis("layer", tuple(rates)), Axis("head", tuple(f"H{at}" for at in range(count))),
        Axis("strongest pairs", names),
    )  # fmt: skip
    formula = "share of real contacts among the L, L/2 and L/5 strongest pairs of L residues"
    return Judged(
        Measurement("precision", "share", axes, values, (0.0, 1.0), "Rao et al. 2021, section 4", formula),
        measure.precision(shown, real, apart), float(real[i, j].mean()), int(real[i, j].sum()),
        int(np.triu(real, 1).sum() - real[i, j].sum()), real,
    )  # fmt: skip


__all__ = ["Contacts", "Judged", "contacts"]
