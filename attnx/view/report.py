"""One self-contained page of a trace: every layer and head, their stages, coreference and kinds of heads.

The page needs no network and no other file: its parts lie in report_html/ and are put together here, the arrays are
packed by `packed.py` and unpacked by the page when a head is looked at. What comes from users and models (texts,
tokens, names) reaches the page through `cells.safe` and as JSON, never as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnx.errors import UnsupportedError
from attnx.formula import visible
from attnx.measure.choice import Verdict
from attnx.records import Array, Attention, Measurement, Site, Tokens, Trace
from attnx.tokens.spans import Mention, axis_labels
from attnx.version import __version__
from attnx.view import colour
from attnx.view.cells import safe
from attnx.view.codes import COARSE, FINE, Blobs
from attnx.view.matrix import block_means, edges
from attnx.view.packed import Packed, pack, packed_heads
from attnx.view.webpage import webpage
from attnx.wording import Wording

THUMB = 40
"""Blocks on each side of a thumbnail."""
DEEP = 1 << 25
"""Cells of query and key over the whole page; with more, they are kept in `COARSE` steps."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the heads say of one pronoun."""

    pronoun: Mention
    candidates: tuple[Mention, ...]
    sites: tuple[int, ...]
    """Positions in `trace.attentions` of the layers measured."""
    shares: Measurement
    """[S,H,C]."""
    weights: Measurement
    """[S,H,C]."""
    verdicts: tuple[Verdict, ...]
    layer_means: tuple[Verdict, ...]
    baselines: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What a page shows."""

    trace: Trace
    """With weights of every site, and masked, query and key (or scores) where the sites have them; where the sites were
    packed before, their arrays may be cut."""
    measures: tuple[Measurement, ...] = ()
    """Each [S,H], in the order of `trace.attentions`."""
    kinds: tuple[tuple[str, ...], ...] = ()
    """[S][H]; "" where a layer has no such head."""
    thresholds: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()
    chosen: tuple[int, int, int] = (0, 0, 0)
    """Site (position in `trace.attentions`), head and query that are open first."""
    notes: tuple[str, ...] = ()
    rest_kinds: tuple[tuple[str, ...], ...] = ()
    """[S][H]: what a sink does with the rest of its weight; "" for other heads."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page and what it is made of."""

    content: bytes
    """UTF-8; ASCII but for the templates."""
    error: float
    """Largest difference of a weight on the page from the trace's."""
    heads: int
    """How many it shows."""
    packed: tuple[str, ...]
    """For each site, what it was packed as; see `Packed.base`."""
    notes: tuple[str, ...]


class PackedSites:
    """The sites of a page, packed some at a time, so that not all matrices need be held.

    Args:
        cells: See `cells`.
    """

    def __init__(self, cells: int) -> None:
        self._levels = FINE if cells <= DEEP else COARSE
        self._blobs = Blobs()
        self._sides: list[dict[str, Any]] = []
        self._sites: list[tuple[Packed, dict[str, Any]] | None] = []
        self._heads: list[tuple[Packed, dict[str, Any], _Thumbs]] = []
        self._known = 0

    @property
    def bases(self) -> tuple[str, ...]:
        """For each site with weights, what it was packed as; see `Packed.base`."""
        return tuple(one[0].base for one in self._sites if one is not None)

    def add(self, trace: Trace) -> None:
        """Pack the sites of a trace, which follow those that were added before."""
        for attention in trace.attentions:
            if attention.weights is None or not attention.weights[0].size:
                self._sites.append(None)
                continue
            packed = pack(attention, self._blobs, self._levels)
            thumbs = _thumbs(attention)
            self._sites.append(
                (packed, _site(trace, attention, packed, self._sides) | _thumbnails(thumbs, self._blobs))
            )

    def add_heads(self, trace: Trace) -> None:
        """Pack some heads of one site, the next ones of the site that is being packed.

        Raises:
            UnsupportedError: The site has no weights.
        """
        (attention,) = trace.attentions
        self._known = len(self._blobs.texts) if not self._heads else self._known
        packed = pack(attention, self._blobs, self._levels)
        self._heads.append((packed, _site(trace, attention, packed, self._sides), _thumbs(attention)))

    def close(self, site: Site) -> bool:
        """End the site whose heads were added.

        Args:
            site: The whole site.

        Returns:
            False if its heads were packed in different ways: then nothing of it is kept, and it is to be added whole.
        """
        heads, self._heads = self._heads, []
        count = sum(one["heads"] for _, one, _ in heads)
        packed = packed_heads([one for one, _, _ in heads], count // (site.kv_heads or count))
        if packed is None:
            self._blobs.forget(self._known)
            return False
        thumbs = np.concatenate([one for _, _, (one, _, _) in heads]), *heads[0][2][1:]
        whole = {
            **heads[0][1],
            "heads": count,
            "kvHeads": len(packed.fields.get("key", ())) or count,
            "scale": list(site.scale) if isinstance(site.scale, tuple) else site.scale,
            "error": packed.error,
            "off": packed.off,
            "peaks": [peak for _, one, _ in heads for peak in one["peaks"]],
        }
        self._sites.append((packed, whole | packed.fields | _thumbnails(thumbs, self._blobs)))
        return True

    def page(self, shown: Report) -> Page:
        """Put the page together.

        Args:
            shown: The trace of all sites that were added, and what was measured of it.

        Raises:
            UnsupportedError: No site has weights.
        """
        trace = shown.trace
        there = {at: one for at, one in enumerate(self._sites) if one is not None}
        if not there:
            raise UnsupportedError(
                "no attention of this model has weights, so there is nothing to show",
                Wording("<model.find()> lists what the model has."),
            )
        notes = [
            f"{label} is left out: its weights are not known"
            for at, label in enumerate(trace.labels)
            if at not in there
        ]
        sites = [{"label": trace.labels[at], **site} for at, (_, site) in there.items()]
        error = max(one.error for one, _ in there.values())
        offs = [one.off for one, _ in there.values() if one.off is not None]
        places = {at: place for place, at in enumerate(there)}
        site, head, query = shown.chosen
        data: dict[str, Any] = {
            "version": __version__,
            "model": safe(trace.model),
            "device": trace.device,
            "text": _text(trace.tokens),
            "memory": None if trace.memory is None else _text(trace.memory),
            "sides": self._sides,
            "sites": sites,
            "error": error,
            "off": max(offs, default=None),
            "measures": [_measure(measure, list(there)) for measure in shown.measures],
            "kinds": [list(shown.kinds[at]) for at in there] if shown.kinds else [],
            "restKinds": [list(shown.rest_kinds[at]) for at in there] if shown.rest_kinds else [],
            "thresholds": list(shown.thresholds),
            "references": [_reference(one, places) for one in shown.references],
            "chosen": {"site": places.get(site, 0), "head": head, "query": query},
            "notes": [safe(note) for note in (*trace.notes, *shown.notes, *notes)],
            "ramps": {"dark": _hex(colour.SEQUENTIAL.colours), "both": _hex(colour.DIVERGING.colours)},
            "blobs": self._blobs.texts,
        }
        heads = sum(one["heads"] for one in sites)
        return Page(webpage(data["text"] or "attention", data), error, heads, self.bases, tuple(notes))


def report(shown: Report) -> Page:
    """Put a page together.

    Args:
        shown: The trace and what was measured of it.

    Raises:
        UnsupportedError: No site has weights.
    """
    sites = PackedSites(cells(shown.trace))
    sites.add(shown.trace)
    return sites.page(shown)


def cells(trace: Trace) -> int:
    """The cells of query and key of all sites, by which a page decides how finely they are kept."""
    return sum(
        array[0].size for a in trace.attentions for array in (a.query, a.key) if array is not None and array.ndim == 4
    )


def _text(tokens: Tokens) -> str:
    return safe(tokens.text) if tokens.text else ""


def _site(trace: Trace, attention: Attention, packed: Packed, sides: list[dict[str, Any]]) -> dict[str, Any]:
    site = attention.site
    weights = attention.need("weights")[0]
    heads, queries, keys = weights.shape
    down, across = (len(edges(size, THUMB)) for size in (queries, keys))
    scale = site.scale
    return {
        "kind": site.kind,
        "component": site.component,
        "heads": heads,
        "kvHeads": len(packed.fields.get("key", ())) or heads,
        "size": None if attention.query is None else int(attention.query.shape[-1]),
        "queries": _side(sides, trace.queries_of(attention), queries),
        "keys": _side(sides, trace.keys_of(attention), keys),
        "scale": list(scale) if isinstance(scale, tuple) else scale,
        "place": safe(site.scale_place) if site.scale_place else "",
        "softcap": site.softcap or None,
        "added": "a mix of all heads, in the place of its own scores" if site.heads_mixed else site.bias,
        "causal": site.causal,
        "op": safe(site.op),
        "node": safe(site.node),
        "notes": [safe(note) for note in site.notes],
        "base": packed.base,
        "error": packed.error,
        "off": packed.off,
        "thumbBlock": [-(-queries // down), -(-keys // across)],
        "peaks": [_plain(value) for value in weights.max(axis=(1, 2))],
        **packed.fields,
    }


def _side(sides: list[dict[str, Any]], tokens: Tokens, size: int) -> int:
    """The number of a list of tokens, kept once."""
    past = max(0, size - len(tokens))
    special = [False] * past + list(tokens.special) if size >= len(tokens) else [False] * size
    side = {
        "pieces": [_piece(piece) for piece in axis_labels(tokens, size)],
        "special": [int(flag) for flag in special],
    }
    if side not in sides:
        sides.append(side)
    return sides.index(side)


def _piece(piece: str) -> str:
    """A token as shown: without surrounding blanks, unless it consists of blanks."""
    return safe(piece.strip() or piece)


_Thumbs = tuple[Array, int, int]
"""Thumbnails [H,rows,columns], rows, columns."""


def _thumbnails(thumbs: _Thumbs, blobs: Blobs) -> dict[str, Any]:
    """Thumbnails, as a page reads them."""
    small, down, across = thumbs
    return {"thumbs": blobs.put(small.tobytes()), "thumb": [down, across]}


def _thumbs(attention: Attention) -> _Thumbs:
    """Block means of the weights as uint8 [H,rows,columns]: 0 hidden, 1 to 255 the square root."""
    weights = attention.need("weights")[0]
    down, across = edges(weights.shape[1], THUMB), edges(weights.shape[2], THUMB)
    out = np.zeros((len(weights), len(down), len(across)), np.uint8)
    for head, line in enumerate(weights):
        # Where no weight is 0, nothing is hidden; the exact check is slow.
        if attention.masked is not None and not line.all():
            start = None if attention.capped is None else attention.capped[0, head]
            line = np.where(visible(attention.masked[0, head], start, line), line, np.nan)
        means, empty = block_means(line, down, across)
        top = np.nanmax(means, initial=0.0) if not empty.all() else 0.0
        codes = 1 + np.rint(254 * np.sqrt(np.nan_to_num(means, nan=0.0) / (top or 1.0)))
        out[head] = np.where(empty, 0, codes).astype(np.uint8)
    return out, len(down), len(across)


def _measure(measure: Measurement, there: Sequence[int]) -> dict[str, Any]:
    return {
        "name": measure.name,
        "unit": measure.unit,
        "bounds": list(measure.bounds),
        "source": safe(measure.source) if measure.source else "",
        "formula": safe(measure.formula) if measure.formula else "",
        "values": [[_plain(value) for value in measure.values[at]] for at in there],
    }


def _reference(one: Reference, places: dict[int, int]) -> dict[str, Any]:
    def as_data(verdict: Verdict) -> dict[str, Any]:
        return {
            "method": safe(verdict.method),
            "where": safe(verdict.where) if verdict.where else "",
            "candidate": verdict.candidate,
            "shares": [_plain(share) for share in verdict.shares],
            "lead": _plain(verdict.lead),
        }

    kept = [row for row, at in enumerate(one.sites) if at in places]
    return {
        "pronoun": safe(one.pronoun.text),
        "query": one.pronoun.pieces[-1],
        "pieces": list(one.pronoun.pieces),
        "candidates": [
            {"text": safe(candidate.text), "pieces": list(candidate.pieces)} for candidate in one.candidates
        ],
        "sites": [places[one.sites[row]] for row in kept],
        "shares": [[[_plain(v) for v in cell] for cell in one.shares.values[row]] for row in kept],
        "weights": [[[_plain(v) for v in cell] for cell in one.weights.values[row]] for row in kept],
        "verdicts": [as_data(verdict) for verdict in one.verdicts],
        "layers": [as_data(one.layer_means[row]) for row in kept],
        "baselines": [as_data(verdict) for verdict in one.baselines],
        "notes": [safe(note) for note in one.notes],
        "source": safe(one.weights.source),
    }


def _plain(value: Any) -> float | None:
    """A number with the digits that a page shows, None for NaN and infinities."""
    number = float(value)
    return float(f"{number:.5g}") if np.isfinite(number) else None


def _hex(colours: Sequence[tuple[int, int, int]]) -> str:
    return "".join(f"{red:02x}{green:02x}{blue:02x}" for red, green, blue in colours)
