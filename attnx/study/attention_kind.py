"""Which kind of attention is meant if a model has several: the encoder's, the decoder's, the cross-attention."""

from __future__ import annotations

from collections.abc import Sequence

from attnx.errors import UsageError
from attnx.records import Site
from attnx.study.request import Head, Request
from attnx.wording import Wording


def sort_of(site: Site) -> str:
    """The kind of attention at a site: "encoder", "decoder", "cross", "additive", "pooling"."""
    return site.component if site.kind == "self" else site.kind


def named_sort(sites: Sequence[Site], name: str, whose: str = "this model") -> str:
    """Resolve a requested kind of attention: "cross", or in full "decoder.cross".

    Raises:
        UsageError: There is no such kind; `whose` says where.
    """
    names = {sort_of(site): sort_of(site) for site in sites}
    whole = {f"{site.component}.{site.kind}": sort_of(site) for site in sites}
    wanted = name.strip().lower()
    if wanted not in names and wanted not in whole:
        raise UsageError(f"{whose} has no {name!r} attention", f"It has {', '.join(names) or 'none'}.")
    return (whole | names)[wanted]


def choose_sort(sites: Sequence[Site], request: Request) -> tuple[str, tuple[str, ...]]:
    """The kind of site that is shown, and the other kinds the model has; layers and heads are checked against it.

    Without a choice it is the kind of the last site: in an encoder-decoder, the cross-attention. Pooling,
    where one query gathers everything, is shown only if there is nothing else.

    Raises:
        UsageError: There is no such kind, layer or head.
    """
    sorts = tuple(dict.fromkeys(sort_of(site) for site in sites))
    if not sorts:
        return "", ()
    sort = next((s for s in reversed(sorts) if s != "pooling"), sorts[-1])
    if request.site is not None:
        sort = named_sort(sites, request.site)
    chosen = [site for site in sites if sort_of(site) == sort]
    layers = {site.layer for site in chosen if site.layer is not None}
    said = (
        f"The model has {'' if len(sorts) == 1 else sort + ' '}layers {min(layers)} to {max(layers)}." if layers else ""
    )
    for layer in (*(request.layers or ()), *(head.layer for head in request.heads if head.layer is not None)):
        if layer not in layers:
            raise UsageError(
                f"there is no layer {layer}", said or Wording("The model's layers are not known; leave out <layers>.")
            )
    for head in request.heads:
        for site in chosen:
            if fits(head, site, request) and site.heads is not None and head.head >= site.heads:
                raise UsageError(f"there is no head {head.head}", f"{site.label} has heads 0 to {site.heads - 1}.")
    return sort, tuple(other for other in sorts if other != sort)


def fits(head: Head, site: Site, request: Request) -> bool:
    """Whether a requested head is one of a site's."""
    if head.layer is not None:
        return head.layer == site.layer
    return request.layers is None or site.layer in request.layers
