"""The projections around an attention of an opened model, and the numbers of W_O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from attnx.measure.norms import gram_of, sizes_behind
from attnx.records import Array, Attention, Site
from attnx.session.model_summary import SMALL, kept_array, kept_values
from attnx.session.protocol import OpenModel

if TYPE_CHECKING:
    from attnx.graph.axes.projections import Projections
    from attnx.graph.shapes.index import Graph

_READ: WeakKeyDictionary[OpenModel, dict[object, Array | None]] = WeakKeyDictionary()
"""Cache of what `output_projection` read, and its products, for as long as the model lives."""


def projections_of(model: OpenModel, site: Site, inputs: Mapping[str, Array] | None = None) -> Projections | None:
    """The projections of a site of a trace; None if its graph is not available. Kept on disk."""
    from attnx.graph.axes.projections import Projection, Projections, projections

    def found() -> dict[str, Any] | None:
        return next((asdict(projections(graph, own)) for graph, own in _graphs(model, site, inputs)), None)

    one_file = model.encoder is None  # else it is not known which of the two holds the site
    key = ("projections", *_key(model, site, inputs))
    known = kept_values(model.find(inputs), key, found) if one_file else found()
    if known is None:
        return None
    return Projections(**{name: None if one is None else Projection(**one) for name, one in known.items()})


def output_projection(model: OpenModel, site: Site, inputs: Mapping[str, Array] | None = None) -> Array | None:
    """W_O as [H,Dv,E]; None if it was not found with certainty. Read once per model."""
    from attnx.graph.axes.projections import output_weights

    known, key = _READ.setdefault(model, {}), _key(model, site, inputs)
    if key not in known:
        known[key] = next((output_weights(graph, own) for graph, own in _graphs(model, site, inputs)), None)
    return known[key]


def output_gram(model: OpenModel, site: Site, inputs: Mapping[str, Array] | None = None) -> Array | None:
    """`gram_of` W_O, float64 [H,Dv,Dv]; None if W_O was not found. Computed once, and kept on disk if small."""
    known, key = _READ.setdefault(model, {}), ("gram", *_key(model, site, inputs))
    if key not in known:

        def product() -> Array | None:
            output = output_projection(model, site, inputs)
            return None if output is None else gram_of(output)

        alone = model.encoder is None  # else it is not known which of the two files holds the site
        known[key] = kept_array(model.find(inputs), key, product) if alone else product()
    return known[key]


def contributions(
    model: OpenModel, attention: Attention, inputs: Mapping[str, Array] | None = None
) -> tuple[Array | None, Array | None]:
    """How large each key's value is after W_O, for `measure.norms.value_norms`.

    Returns:
        ||v W_O|| [H,K] where W_O's product with itself is enough for that; else None, and W_O where it was found.
    """
    gram = output_gram(model, attention.site, inputs)
    sizes = None if gram is None else sizes_behind(attention, gram)
    return sizes, None if sizes is not None else output_projection(model, attention.site, inputs)


def mixed(model: OpenModel, site: Site, inputs: Mapping[str, Array] | None = None) -> tuple[Array | None, Array | None]:
    """What adds up the heads of a site, for `measure.pair.head_shares`.

    Returns:
        W_O W_O^T of all heads together, [H Dv,H Dv], where that is small enough to be kept; else None, and W_O where it
        was found.
    """

    def product() -> Array | None:
        output = output_projection(model, site, inputs)
        if output is None or 8 * (output.shape[0] * output.shape[1]) ** 2 > SMALL:
            return None
        rows = output.reshape(-1, output.shape[2]).astype(np.float64)
        return np.asarray(rows @ rows.T)

    gram = None
    if model.encoder is None:
        gram = kept_array(model.find(inputs), ("mixed", *_key(model, site, inputs)), product)
    return gram, None if gram is not None else output_projection(model, site, inputs)


def _key(model: OpenModel, site: Site, inputs: Mapping[str, Array] | None) -> tuple[object, ...]:
    return (model.find(inputs).branch, site.node, site.op, site.component, site.kind)


def _graphs(model: OpenModel, site: Site, inputs: Mapping[str, Array] | None) -> Iterator[tuple[Graph, Site]]:
    """The graph that holds a site of a trace, and the site as numbered there (an encoder may be a separate file)."""
    for one in (model, model.encoder):
        if one is None:
            continue
        found = one.graph(inputs if one is model else None)
        for own in found.sites:
            if (own.node, own.op, own.component, own.kind) == (site.node, site.op, site.component, site.kind):
                yield found.opened, own
