"""A protein run through a model: which residues its attention says are in contact, and how many of these are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnx.errors import InputError, ModelError, UnsupportedError, UsageError
from attnx.measure import contacts as measure
from attnx.records import Array, Axis, Measurement, Site, Tokens, Trace
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.crossing import is_two_sided
from attnx.study.request import Head
from attnx.study.selection import trusted
from attnx.wording import Wording

GAPS = "-.*"
"""What stands for a residue besides letters: gaps of an alignment, a stop."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """How many of the strongest pairs are real contacts."""

    heads: Measurement
    """[L,H,3]: of every head, among the L, L/2 and L/5 strongest pairs. The best of them is chosen after the fact."""
    mean: Array
    """float64 [3]: of the map that is shown."""
    chance: float
    """The share of real contacts among all pairs: what a map that knows nothing gives."""
    contacts: int
    """Real contacts among the pairs that count."""
    near: int
    """Real contacts of residues that do not lie far enough apart to count."""
    real: Array
    """bool [N,N]."""


@dataclass(frozen=True, slots=True, eq=False)
class Contacts:
    """Contacts of one protein."""

    trace: Trace
    """Without arrays."""
    residues: tuple[str, ...]
    """Letters."""
    places: tuple[int, ...]
    """The token of each."""
    map: Measurement
    """[N,N], the mean over the chosen heads."""
    where: str
    """Which these are."""
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
    """Run a protein and make a map of its contacts.

    Args:
        model: A protein model that reads residue by residue.
        prompt: The protein.
        heads: Heads whose mean is the map; a head without a layer is of every layer. All where none is named.
        layers: Only these layers.
        gold: A file with the real contacts, see `measure.contacts.read_gold`.
        start: The number of the first residue in it.
        apart: Positions that two residues must lie apart to count.

    Raises:
        UsageError: No such head or layer, or a model with two sides.
        InputError: No protein, or one whose residues do not lie so far apart.
    """
    if is_two_sided(model):
        raise UsageError(
            f"{model.name} has an encoder and a decoder, and contacts are read off one text's attention to itself",
            "Open the encoder's file by itself.",
        )
    chosen = _chosen([site for site in model.sites if site.kind == "self"], heads, layers)
    whole = heads and gold is None  # else every head is held against the contacts, whichever the map is of
    by_layer: dict[int, list[int]] = {}
    for layer, head in chosen:
        by_layer.setdefault(layer, []).append(head)
    only = tuple(by_layer) if gold is None and (heads or layers is not None) else None
    wanted = Wanted(only, ("masked", "weights"), kinds=("self",), heads=by_layer if whole else None)
    trace, doubts = trusted(execute(model, prompt, wanted))
    places, letters = _residues(model, trace.tokens)
    count = len(places)
    if not len(measure.pairs(count, apart)[0]):
        raise InputError(
            f"no two residues lie {apart} positions apart: the protein has {count}",
            Wording("Give a longer one[, or a smaller <apart>]."),
        )
    real = None if gold is None else measure.read_gold(gold, letters, start)
    sums, used = np.zeros((count, count)), []
    most = max(a.need("weights").shape[1] for a in trace.attentions)
    rates = np.full((len(trace.attentions), most, len(measure.SHARES)), np.nan)
    for at, attention in enumerate(trace.attentions):
        weights, layer = attention.need("weights"), -1 if attention.site.layer is None else attention.site.layer
        if weights.shape[2:] != (len(trace.tokens),) * 2:
            raise UnsupportedError(
                f"the rows and columns of {trace.labels[at]} are not the tokens of the protein",
                Wording("<model.trace()> shows what they are."),
            )
        picked = by_layer[layer] if whole and layer in by_layer else range(weights.shape[1])
        for place, head in enumerate(picked):
            found = measure.corrected(weights[0, place][np.ix_(places, places)])
            if real is not None:
                rates[at, head] = measure.precision(found, real, apart)
            if (layer, head) in chosen or (not heads and (layers is None or layer in layers)):
                sums += found
                used.append(f"{trace.labels[at]} H{head}")
    if not used:
        raise UsageError("none of the chosen heads can be trusted, so there is no map", doubts[0] if doubts else "")
    names = tuple(f"{letter}{at}" for at, letter in enumerate(letters, 1))
    axes = (Axis("residue", names), Axis("with residue", names))
    made = Measurement(
        "contacts", "", axes, sums / len(used), (None, None), measure.SOURCE, measure.FORMULA,
    )  # fmt: skip
    bare = Trace(trace.model, trace.device, trace.tokens, None, (), notes=trace.notes)
    where = " ".join(used) if heads else f"mean of {len(used)} heads"
    return Contacts(
        bare, letters, tuple(places), made, where, apart,
        None if real is None else _judged(trace, made.values, rates, real, apart), (*trace.notes, *doubts),
    )  # fmt: skip


def _chosen(sites: Sequence[Site], heads: Sequence[Head], layers: Sequence[int] | None) -> list[tuple[int, int]]:
    """Layer and head of those that were named."""
    have = {site.layer: site for site in sites if site.layer is not None}
    for asked in (*(layers or ()), *(head.layer for head in heads if head.layer is not None)):
        if asked not in have:
            raise UsageError(f"there is no layer {asked}", f"The model has layers {min(have)} to {max(have)}.")
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
    """The tokens that are residues, and their letters: all but those that stand around the protein; masked ones too.

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


def _judged(trace: Trace, shown: Array, rates: Array, real: Array, apart: int) -> Judged:
    i, j = measure.pairs(len(real), apart)
    names = tuple("L" if share == 1 else f"L/{share}" for share in measure.SHARES)
    axes = (
        Axis("layer", trace.labels), Axis("head", tuple(f"H{at}" for at in range(rates.shape[1]))),
        Axis("strongest pairs", names),
    )  # fmt: skip
    formula = "share of real contacts among the L, L/2 and L/5 strongest pairs of L residues"
    return Judged(
        Measurement("precision", "share", axes, rates, (0.0, 1.0), "Rao et al. 2021, section 4", formula),
        measure.precision(shown, real, apart), float(real[i, j].mean()), int(real[i, j].sum()),
        int(np.triu(real, 1).sum() - real[i, j].sum()), real,
    )  # fmt: skip


__all__ = ["Contacts", "Judged", "contacts"]
