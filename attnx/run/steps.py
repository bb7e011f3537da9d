"""Successive calls of a decoder with a cache, joined into one attention: rows are concatenated, keys grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnx import formula
from attnx.records import STAGES, Array, Attention, Check
from attnx.run.read import measure_causal, shown


def join_steps(steps: Sequence[Sequence[Attention]]) -> tuple[Attention, ...]:
    """Join the results of the calls, site by site.

    Args:
        steps: For each call, its attentions; every call has the same sites in the same order. Call i has the queries
            of its own tokens and the keys of all tokens up to them.

    Returns:
        For each site an attention with all queries and all keys. Cells of keys that did not exist yet when a query was
        run: weights 0, masked -inf, scores computed from query and key (NaN where these are missing).
    """
    return tuple(_join([step[i] for step in steps]) for i in range(len(steps[0])))


def _join(parts: Sequence[Attention]) -> Attention:
    site = parts[0].site
    sizes = [_queries(part) for part in parts]
    total = sum(sizes)
    cross = site.kind != "self"
    arrays: dict[str, Any] = {}
    for name in ("query", "context"):
        rows = [getattr(part, name) for part in parts]
        arrays[name] = None if any(r is None for r in rows) else np.concatenate(rows, axis=2)
    for name in ("key", "value"):
        arrays[name] = _keys([getattr(part, name) for part in parts], sizes, total, cross)
    for name in STAGES:
        rows = [getattr(part, name) for part in parts]
        fill = 0.0 if name == "weights" else -np.inf if name == "masked" else np.nan
        arrays[name] = None if any(r is None for r in rows) else _rows(rows, sizes, total, fill, cross)
    joined = replace(parts[0], **arrays)
    joined = _fill_future(joined, parts) if not cross else joined
    if site.moved and len(parts) > 1:
        site = replace(site, query_order=(), key_order=())  # what is known of whole texts does not hold for pieces
    checks = _worst([c for part in parts for c in part.checks])
    if site.causal is None and arrays["weights"] is not None:
        site = shown(site, measure_causal({"weights": arrays["weights"]}))
    return replace(joined, site=site, checks=checks)


def _queries(part: Attention) -> int:
    arrays = (part.weights, part.masked, part.scaled, part.scores, part.query, part.context)
    return next((int(a.shape[2]) for a in arrays if a is not None), 1)


def _keys(arrays: Sequence[Array | None], sizes: Sequence[int], total: int, cross: bool) -> Array | None:
    """All keys: the last call's, cut to those in use; where it has dropped early ones, each call's own new ones."""
    present = [a for a in arrays if a is not None]
    if len(present) < len(arrays):
        return None
    last = present[-1]
    if cross:
        return last
    if last.shape[2] >= total:
        return np.ascontiguousarray(last[:, :, :total])
    return np.concatenate([a[:, :, a.shape[2] - size :] for a, size in zip(present, sizes, strict=True)], axis=2)


def _rows(rows: Sequence[Array], sizes: Sequence[int], total: int, fill: float, cross: bool) -> Array:
    """[B,H,total,K]: each call's rows; `fill` where a key did not exist yet, or was dropped."""
    if cross:
        return np.concatenate(rows, axis=2)
    batch, heads = rows[0].shape[:2]
    out = np.full((batch, heads, total, total), fill, dtype=np.float32)
    done = 0
    for array, size in zip(rows, sizes, strict=True):
        until = done + size
        width = min(array.shape[3], until)
        # A growing cache ends with the newest key; a static one starts with the first, followed by unused room.
        own = array[..., :width] if array.shape[3] >= until else array[..., -width:]
        out[:, :, done:until, until - width : until] = own
        done = until
    return out


def _fill_future(joined: Attention, parts: Sequence[Attention]) -> Attention:
    """Scores of keys that did not exist yet, from query and key; scaled and capped scores from these."""
    site = joined.site
    new: dict[str, Any] = {}
    if joined.scores is not None and joined.query is not None and joined.key is not None:
        new["scores"] = np.where(np.isnan(joined.scores), formula.scores(joined.query, joined.key), joined.scores)
        if joined.scaled is not None and site.scale is not None:
            new["scaled"] = np.where(np.isnan(joined.scaled), formula.scaled(new["scores"], site.scale), joined.scaled)
            if joined.capped is not None:
                capped = formula.capped(new["scaled"], site.softcap)
                new["capped"] = np.where(np.isnan(joined.capped), capped, joined.capped)
    return replace(joined, **new)


def _worst(checks: Sequence[Check]) -> tuple[Check, ...]:
    """For each check, the call with the worst result."""
    found: dict[str, Check] = {}
    for check in checks:
        old = found.get(check.name)
        if old is None or not check.difference / check.tolerance <= old.difference / old.tolerance:
            found[check.name] = check
    return tuple(found.values())
