"""Factors on the query or key that enters a fused operator count as part of the scale, as in spelled-out attention.

Exporters that fuse late leave a scale where the model had it: after the projection of the query (Whisper), or as its
square root on query and key; the operator then has a scale of 1.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.factors import factors_of

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph
    from attnx.sites.finding import Finding

Numbers = tuple[float | tuple[float, ...], ...]


def take_out(graph: Graph, finding: Finding) -> None:
    """Record the factors on a fused site's query and key, so that its tensors exclude them and its scale includes them.

    Args:
        graph: The graph as in the file.
        finding: The finding for a fused operator; changed in place.
    """
    if not finding.linear:
        return
    sides: dict[str, Numbers] = {}
    for quantity, source in (("query", finding.query_from), ("key", finding.key_from)):
        if source != finding.value_from and (quantity == "query" or source != finding.query_from):
            sides[quantity] = tuple(_number(factor) for factor, _ in factors_of(graph, source, finding.heads))
    carried = (*sides.get("query", ()), *sides.get("key", ()))
    if not carried:
        return
    for quantity in (*sides, "scores"):
        if (place := finding.places.get(quantity)) is not None:
            own = carried if quantity == "scores" else sides[quantity]
            finding.places[quantity] = replace(place, factors=(*place.factors, *own))
    before = " and ".join(quantity for quantity in ("query", "key") if sides.get(quantity))
    inside = f", and {finding.scale_place}" if finding.scale != 1.0 and finding.scale_place else ""
    finding.scale_place = f"on {before if ' and ' in before else f'the {before}'}{inside}"
    if finding.scale is not None:
        whole = prod((np.asarray(n, np.float64) for n in (finding.scale, *carried)), start=np.float64(1))
        finding.scale = float(whole) if np.ndim(whole) == 0 else tuple(float(x) for x in np.ravel(whole))


def _number(factor: object) -> float | tuple[float, ...]:
    held = np.asarray(factor, np.float64)
    return float(held) if held.ndim == 0 else tuple(float(x) for x in held.ravel())
