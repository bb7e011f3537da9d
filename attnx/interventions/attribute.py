"""Direct logit attribution: what the embedding, each head, each MLP and the biases add to a token's logit.

The final norm is frozen at the run's own statistics; everything after it must be linear.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Wang et al. 2022 (IOI), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import InputError, UnsupportedError
from attnx.graph.axes.paths import reaches
from attnx.graph.axes.projections import output_weights
from attnx.interventions.cells import unfactored
from attnx.interventions.frozen import Frozen, frozen, same
from attnx.interventions.norms import norm_of
from attnx.interventions.picks import Picked, picked
from attnx.interventions.plan import RUN
from attnx.interventions.points import Point
from attnx.interventions.stream import Stack
from attnx.interventions.tail import last_of, logits_of, part, stacks_of, uncapped
from attnx.interventions.unembedding import Targets, Unembedding
from attnx.records import Array, Place, Site
from attnx.run.check import TOLERANCE, difference

if TYPE_CHECKING:
    from attnx.interventions.unedited import Unedited

_ROUNDED = 0.03
"""How much of what the parts add, all counted as positive, rounding to half precision or integers may lose."""


@dataclass(frozen=True, slots=True, eq=False)
class Attributed:
    """What each part adds to the logits of N targets; the parts and the missed rest sum to the logit. All float64."""

    logit: Array
    """[N], before a softcap."""
    heads: Array
    """[N,L,H]: of self-attention (or of cross-attention if there is no other)."""
    mlps: Array
    """[N,L]."""
    attention_biases: Array
    """[N,L]: W_O's biases."""
    embedding: Array
    """[N]: the stream at the input of the first layer."""
    constant: Array
    """[N]: the final norm's bias and the head's."""
    missed: Array
    """[N]: what none of these explain: rounding, including quantisation in integer models."""
    cross_heads: Array | None = None
    """[N,L,H], for a decoder that attends to an encoder."""
    output: str = ""
    capped: bool = False
    """Whether a softcap stands between the logits that are taken apart and the output."""

    def arrays(self, name: str) -> dict[str, Array]:
        """The arrays by the names used in files and scripts; float32."""
        keys = ("logit", "heads", "cross_heads", "mlps", "attention_biases", "embedding", "constant", "missed")
        every = {key: getattr(self, key) for key in keys}
        return {f"{name}.{key}": np.asarray(a, np.float32) for key, a in every.items() if a is not None}


def attribute(all_: Unedited, targets: Targets, run: str = RUN) -> Attributed:
    """Decompose logits.

    Args:
        all_: The model and its feeds.
        targets: Row of the batch, position, token.
        run: The feed.

    Raises:
        UnsupportedError: The model is not a sum of parts and one norm; the message says why.
        InputError: A target that does not exist.
    """
    stacks = stacks_of(all_)
    stack = stacks.get("decoder") or stacks["encoder"]
    return _Attribution(all_, run, stack).of(targets)


class _Attribution:
    """One model, one run, its stack."""

    def __init__(self, all_: Unedited, run: str, stack: Stack) -> None:
        self._all, self._run, self._stack = all_, run, stack
        if stack.normed:
            raise UnsupportedError(
                "norms stand on the residual stream itself, between the layers: what a part adds is normed again and "
                "again, and no logit is the sum of what they add",
                "The lens and ablations are for such models too.",
            )
        if not stack.plain:
            raise UnsupportedError("the residual stream is more than the sum of what attention and MLP add to it")
        name, why = logits_of(all_, stack)
        if name is None:
            raise UnsupportedError(f"there is no logit to attribute: {why}")
        self._output = name
        self._sites = {site.index: site for site in all_.points.wide.found.sites}
        self._close = TOLERANCE["float32" if all_.exact else "low"]
        self._norm = True
        """Whether a norm stands between the last layer and the logits."""

    def of(self, targets: Targets) -> Attributed:
        """Decompose the logits of targets."""
        stack = self._stack
        self._prepare()
        first, last = (self._taken(place) for place in (stack.layers[0].given, last_of(stack)))
        self._check(targets, last.shape)
        norm, head, spots = self._behind(last, targets)
        layers, count = len(stack.layers), len(targets)
        heads: dict[str, list[Array]] = {}
        mlps, biases = np.zeros((count, layers)), np.zeros((count, layers))
        summed = first.copy()

        def logits(parts: Sequence[Array]) -> Array:
            """The contributions of parts [P,E] of each target to its logit, [N,P]."""
            return head.added([norm.linear(p, *spot) for p, spot in zip(parts, spots, strict=True)])

        for number, layer in enumerate(stack.layers):
            for term in layer.terms:
                added = self._taken(term.added)
                summed += term.sign * added
                if term.site is None:
                    mlps[:, number] += term.sign * logits([added[b, q][None] for b, q, _ in targets])[:, 0]
                    continue
                site = self._sites[term.site]
                found = term.sign * logits(self._parts(site, term.projected or term.place, term.added, targets))
                heads.setdefault(site.kind, []).append(found[:, :-1])
                biases[:, number] += found[:, -1]
        if (gap := difference(summed, last)) > self._close:
            raise UnsupportedError(f"what the layers add does not sum to the residual stream: it is off by {gap:.2g}")
        embedding = logits([first[b, q][None] for b, q, _ in targets])[:, 0]
        constant = head.constant(norm.bias)
        own = np.stack(heads["self" if "self" in heads else "cross"], axis=1)
        cross = np.stack(heads["cross"], axis=1) if len(heads) > 1 else None
        whole = embedding + constant + mlps.sum(1) + biases.sum(1) + own.sum((1, 2))
        missed = head.logit - (whole if cross is None else whole + cross.sum((1, 2)))
        off, close = np.abs(missed) / np.maximum(1.0, np.abs(head.logit)), self._close
        if not self._all.exact:
            shares = np.concatenate([mlps, biases, own.reshape(count, -1), embedding[:, None]], axis=1)
            off, close = np.abs(missed), _ROUNDED * np.abs(shares).sum(axis=1)
        if not (off <= close).all():
            before = "what follows the last layer is not linear, and no final norm of its positions was found"
            behind = "what follows the final norm is not linear, or a logit is made of more than one position"
            why = behind if self._norm else before
            raise UnsupportedError(
                f"the parts do not sum to the logit (off by {float(off.max()):.2g}): {why}",
                "The lens, patches and ablations are for such models too.",
            )
        capped = uncapped(self._all, self._output) != self._output
        return Attributed(head.logit, own, mlps, biases, embedding, constant, missed, cross, self._output, capped)

    def _prepare(self) -> None:
        """Run once for all tensors that are needed."""
        terms = [term for layer in self._stack.layers for term in layer.terms]
        sites = [self._sites[term.site] for term in terms if term.site is not None]
        places = [self._stack.layers[0].given, last_of(self._stack)]
        places += [place for term in terms for place in (term.projected or term.place, term.added)]
        contexts = [point for site in sites for point in self._all.points.of(site, "context")]
        self._all.take(self._run, [*contexts, *dict.fromkeys(map(_stream, places))])
        self._all.check(self._run, sites)

    def _taken(self, place: Place) -> Array:
        (array,) = self._all.take(self._run, [_stream(place)])
        return np.asarray(array, np.float64)

    def _check(self, targets: Targets, shape: tuple[int, ...]) -> None:
        tokens = self._all.output(self._run, self._output).shape[-1]
        if not targets:
            raise InputError("there is nothing to attribute: no target is given", "A target is row, position, token.")
        for target in targets:
            for place, count, said in zip(target, (*shape[:2], tokens), ("row", "position", "token"), strict=True):
                if not 0 <= place < count:
                    raise InputError(
                        f"target {list(target)}: there is no {said} {place}", f"There are {count}, counted from 0."
                    )

    def _behind(self, last: Array, targets: Targets) -> tuple[Frozen, Unembedding, list[tuple[int, int]]]:
        """The final norm, frozen, what follows it, and where the targets are in what is normed."""
        graph, out = self._all.points.wide.graph, last_of(self._stack)
        ends = {"logits": uncapped(self._all, self._output)}
        spots = [(row, position) for row, position, _ in targets]
        value = norm_of(graph, out.value)
        if value is None or reaches(graph, self._output, {out.value}, {value}):
            found = picked(self._all, self._run, _stream(out), self._output)
            if found is None:
                self._norm = False
                return (
                    same(*last.shape),
                    Unembedding(part(self._all, self._run, _stream(out), ends), last, targets),
                    spots,
                )
            spots, out = _among(found, spots), found.place
            value = norm_of(graph, out.value)
            assert value is not None
        end = Place(value, out.layout)
        norm = frozen(self._all, self._run, _stream(out), _stream(end), "what follows the last layer")
        placed = [(*spot, token) for spot, (_, _, token) in zip(spots, targets, strict=True)]
        return norm, Unembedding(part(self._all, self._run, _stream(end), ends), self._taken(end), placed), spots

    def _parts(self, site: Site, place: Place, added: Place, targets: Targets) -> list[Array]:
        """What each head adds to the stream at each target, followed by W_O's bias: [H+1,E]."""
        everything = self._all
        everything.check(self._run, [site])
        title = everything.points.title(site)
        weights = output_weights(everything.points.wide.graph, site)
        if weights is None:
            raise UnsupportedError(
                f"{title}: what a head adds is not known: its output projection does not read the heads as they are "
                "(a gate or a norm stands before it), or its numbers cannot be read"
            )
        (point,) = everything.points.of(site, "context")
        (raw,) = everything.take(self._run, [point])
        context = np.asarray(unfactored(point.place, raw, point.order), np.float64)
        wide = np.asarray(weights, np.float64)
        rest = self._taken(place) - np.einsum("bhqd,hde->bqe", context, wide)
        bias = rest.mean(axis=(0, 1))  # the same everywhere, except for rounding
        between = frozen(
            everything, self._run, _stream(place), _stream(added), f"what follows the attention of {title}"
        )
        found = []
        for b, q, _ in targets:
            heads = np.einsum("hd,hde->he", context[b, :, q], wide)
            behind = between.linear(np.concatenate([heads, bias[None]]), b, q)
            behind[-1] += between.bias
            found.append(behind)
        return found


def _among(found: Picked, spots: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where positions of the stream are among the picked ones."""
    placed = []
    for row, position in spots:
        spot = found.at(row, position)
        if spot is None:
            some = ", ".join(map(str, found.of_row(row)))
            raise UnsupportedError(
                f"there is no logit of position {position}: before its final norm, the model picks "
                f"{f'position {some}' if some else 'nothing'} of row {row}"
            )
        placed.append(spot)
    return placed


def _stream(place: Place) -> Point:
    return Point("the residual stream", "residual", place, "bqd")


__all__ = ["Attributed", "attribute"]
