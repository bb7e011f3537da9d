"""What interventions change: at which hooks of the edited model, which cells, and to what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from attnx import formula
from attnx.errors import UnsupportedError, UsageError
from attnx.feed.inputs import own_mask, seen_by
from attnx.interventions.cells import Row, Tensor, given_values, mask_of, own_cells, repeated
from attnx.interventions.editing import Hook
from attnx.interventions.plan import OF_LAYERS, PATCHED, Edit, Intervention
from attnx.interventions.points import Key, Point
from attnx.interventions.unedited import Unedited
from attnx.records import Array, Site

Slip = tuple[Key, str]
"""The name of a hook: its point's key and its mode."""


class Changes:
    """Interventions on one feed, as hooks of one edited model and each run's changes at them.

    Args:
        all_: The model and its feeds.
        name: The feed.
        interventions: The interventions on that feed.

    Raises:
        UnsupportedError: Something that cannot be reached.
        UsageError: Something that does not exist.
    """

    def __init__(self, all_: Unedited, name: str, interventions: Sequence[Intervention]) -> None:
        self._all, self._name = all_, name
        self._site_of: dict[int, Site] = {s.index: s for s in all_.points.wide.found.sites}
        self._hooks: dict[Slip, Hook] = {}
        self._used: list[list[tuple[Edit, Site, list[Hook]]]] = [
            [(e, site, self._hooks_of(e, site)) for e in i.edits for site in self._sites(e)] for i in interventions
        ]

    def _sites(self, e: Edit) -> list[Site]:
        component = e.component
        if e.kind == "patch" and e.quantity in ("mlp", "residual") and component == "cross":
            raise UsageError(
                f"a patch of {e.quantity} names the component cross, and {e.quantity} belongs to a stack of layers",
                "Name the encoder or the decoder.",
            )
        return self._all.points.sites(component, e.layers)

    def _hooks_of(self, e: Edit, site: Site) -> list[Hook]:
        points = self._all.points
        if e.kind == "knockout":
            hooks = [Hook(point, "hide") for point in points.of(site, "masked")]
            if "weights" in site.places:
                hooks += [Hook(point, "fill") for point in points.of(site, "weights")]
        elif e.kind == "ablate" and e.method == "mean":
            hooks = [Hook(point, "mean") for point in points.of(site, "context")]
        elif e.kind == "ablate":
            quantity = "weights" if e.method == "uniform" else "context"
            hooks = [Hook(point, "set") for point in points.of(site, quantity)]
        else:
            if e.quantity not in PATCHED:
                raise UsageError(f"there is no quantity {e.quantity!r} to patch", f"There are {', '.join(PATCHED)}.")
            hooks = [Hook(point, "set") for point in points.of(site, e.quantity)]
        return [self._hooks.setdefault((hook.point.key, hook.mode), hook) for hook in hooks]

    @property
    def hooks(self) -> list[Hook]:
        """All hooks at which any of them changes the model."""
        return list(self._hooks.values())

    @property
    def sites(self) -> list[list[int]]:
        """For each intervention, the attentions in whose layers it changes something, by index."""
        return [[site.index for _, site, _ in used] for used in self._used]

    def hooks_by(self, layer_of: Callable[[int], int]) -> dict[int, list[Hook]]:
        """Hooks by the layer of the attention they are named after."""
        found: dict[int, dict[Slip, Hook]] = {}
        for used in self._used:
            for _, site, hooks in used:
                found.setdefault(layer_of(site.index), {}).update({(h.point.key, h.mode): h for h in hooks})
        return {layer: list(hooks.values()) for layer, hooks in found.items()}

    @property
    def taking(self) -> bool:
        """Whether tensors of unedited runs are needed, not just their shapes."""
        patched = any(e.kind == "patch" and e.values is None for used in self._used for e, _, _ in used)
        return patched or any(self._kv(hook.point) for hook in self.hooks if hook.point.quantity in ("key", "value"))

    @property
    def touched(self) -> list[Site]:
        """The attentions whose own tensors are changed."""
        found = {
            site.index: site
            for used in self._used
            for e, site, _ in used
            if e.kind != "patch" or e.quantity not in OF_LAYERS
        }
        return list(found.values())

    def rows(self, take: Sequence[Point]) -> list[dict[Slip, Row]]:
        """What each intervention changes at each hook; `take`: other points whose shapes are needed."""
        self.survey(take)
        return [self._rows(used) for used in self._used]

    def row(self, intervention: int, among: Collection[Slip]) -> dict[Slip, Row]:
        """What one intervention changes at some hooks, whose shapes are known."""
        return self._rows(self._used[intervention], among)

    def survey(self, more: Sequence[Point]) -> None:
        """The shapes of everything that is changed, and the tensors that are patched in."""
        everything, name = self._all, self._name
        sources: dict[str, list[Point]] = {}
        for used in self._used:
            for e, _, mine in used:
                if e.kind == "patch" and e.values is None:
                    sources.setdefault(e.source, []).extend(hook.point for hook in mine)
        own = [hook.point for hook in self.hooks]
        grouped = [p for p in own if p.quantity in ("key", "value")]
        take = {p.key for p in grouped if self._kv(p) is not None}
        take |= {p.key for p in sources.get(name, [])}
        everything.survey(name, [*own, *more], take)
        of = everything.state(name)
        for point in grouped:
            if point.key in of.raw:
                of.tensors[point.key] = repeated(of.tensors[point.key], self._kv(point), of.raw[point.key])
        for source, points in sources.items():
            if source != name:
                everything.survey(source, points, {p.key for p in points})

    def _kv(self, point: Point) -> int | None:
        site = self._site_of.get(point.site) if point.site is not None else None
        return None if site is None else site.kv_heads

    def _rows(
        self, used: Sequence[tuple[Edit, Site, list[Hook]]], among: Collection[Slip] | None = None
    ) -> dict[Slip, Row]:
        """What one intervention changes at each hook, or at some."""
        rows: dict[Slip, Row] = {}
        of = self._all.state(self._name)
        for e, site, hooks in used:
            for hook in hooks:
                key = (hook.point.key, hook.mode)
                if among is not None and key not in among:
                    continue
                row = self._row(e, site, hook, of.tensors[hook.point.key])
                rows[key] = row if key not in rows else _over(rows[key], row)
        return rows

    def _row(self, e: Edit, site: Site, hook: Hook, tensor: Tensor) -> Row:
        if hook.mode == "fill":
            masked = next(h.point for h in self._hooks.values() if h.mode == "hide" and h.point.site == site.index)
            whole = self._all.state(self._name).tensors[masked.key]
            hidden = self._hidden(e, whole, site)
            return Row(np.asarray(hidden.any(axis=-1, keepdims=True)))
        if hook.mode == "hide":
            return Row(self._hidden(e, tensor, site))
        mask = mask_of(e, tensor, site)
        if hook.mode == "mean":
            return Row(mask, over=self._over(e, tensor))
        if e.kind == "ablate" and e.method == "uniform":
            return Row(mask, self._uniform(site, tensor))
        if e.kind == "ablate":
            return Row(mask)
        if e.values is not None:
            return Row(mask, given_values(e, tensor, site))
        source = self._all.state(e.source)
        theirs = source.tensors[hook.point.key]
        values = theirs.ordered(source.raw[hook.point.key])
        window = hook.point.place.window
        if window is not None:
            values = values[..., slice(*window)]
        if theirs.sizes != tensor.sizes:
            raise UsageError(
                f"{hook.point.title} is {_sized(tensor)} in the run and {_sized(theirs)} where it is patched from",
                "The two texts must have the same number of tokens.",
            )
        return Row(mask, np.asarray(values, np.float32))

    def _hidden(self, e: Edit, tensor: Tensor, site: Site) -> Array:
        mask = mask_of(e, tensor, site)
        return np.asarray(mask & ~own_cells(tensor)) if e.keep_self else mask

    def _uniform(self, site: Site, tensor: Tensor) -> Array:
        """1/n on the n keys that each query can see; 0 in a row that sees none."""
        found = self._all.attentions(self._name, [site])[site.index]
        seen = formula.visible(found.masked, found.capped, found.weights)
        count = seen.sum(axis=-1, keepdims=True)
        whole = np.asarray(seen / np.maximum(count, 1), np.float32)
        return whole[:, :1] if (whole == whole[:, :1]).all() and tensor.sizes["h"] > 1 else whole

    def _over(self, e: Edit, tensor: Tensor) -> Array:
        """The weight of each query in the mean, [B,Q]."""
        queries, batch = tensor.sizes["q"], tensor.sizes["b"]
        if e.over is None:
            return np.full((batch, queries), 1.0 / queries, np.float32)
        feed = self._all.feed(self._name)
        slot = own_mask(self._all.slots, feed)
        mask = seen_by(slot, feed[slot.name]) if slot is not None else None
        if mask is not None and mask.shape[0] == batch and mask.shape[1] > queries:
            mask = mask[:, -queries:]  # cached positions come first
        if mask is None or mask.shape != (batch, queries):
            raise UnsupportedError(
                f"{tensor.point.title}: which of its {queries} positions are padding is not known",
                "Take the mean over all positions.",
            )
        real = np.asarray(mask != 0, np.float32)
        return np.asarray(real / np.maximum(real.sum(axis=1, keepdims=True), 1))


def _over(one: Row, other: Row) -> Row:
    """Combine two edits of one tensor in one run; if both name a cell, the later one wins."""
    mask = one.mask | other.mask
    if one.over is not None or (one.values is None and other.values is None):
        return Row(mask, None, other.over)
    first = np.zeros((1,) * mask.ndim, np.float32) if one.values is None else one.values
    second = np.zeros((1,) * mask.ndim, np.float32) if other.values is None else other.values
    return Row(mask, np.asarray(np.where(other.mask, second, first)))


def _sized(tensor: Tensor) -> str:
    sizes = tensor.sizes
    return f"[{', '.join(str(sizes[letter]) for letter in tensor.point.order)}]"
