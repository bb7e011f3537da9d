"""The JSON that scripts rely on: `attnx sites --json` and `attnx trace --json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnx import __version__
from attnx.records import QUANTITIES, Attention, Miss, Site, Trace


def site_object(site: Site) -> dict[str, Any]:
    """A site as JSON. `scale` is null where it is one a head (then `scales` has them) or not known."""
    return {
        "index": site.index,
        "layer": site.layer,
        "component": site.component,
        "kind": site.kind,
        "causal": site.causal,
        "heads": site.heads,
        "kv_heads": site.kv_heads,
        "head_dim": site.head_size,
        "scale": site.scale if isinstance(site.scale, float) else None,
        "scales": list(site.scale) if isinstance(site.scale, tuple) else None,
        "scale_place": site.scale_place,
        "softcap": site.softcap,
        "window": site.window,
        "bias": site.bias,
        "sink": site.sink,
        "op": site.op,
        "node": site.node,
        "places": {q: {"value": p.value, "layout": p.layout} for q, p in site.places.items()},
        "notes": list(site.notes),
    }


def miss_object(miss: Miss) -> dict[str, str]:
    """A near miss as JSON."""
    return {"node": miss.node, "op": miss.op, "reason": miss.reason}


def sites_document(model: str, sites: Sequence[Site], misses: Sequence[Miss]) -> dict[str, Any]:
    """What `attnx sites --json` prints."""
    return {
        "schema": "attnx/sites",
        "version": __version__,
        "model": model,
        "sites": [site_object(s) for s in sites],
        "misses": [miss_object(m) for m in misses],
    }


def _attention_object(attention: Attention) -> dict[str, Any]:
    out = site_object(attention.site)
    out["arrays"] = {
        q: {"shape": list(array.shape), "origin": attention.origin.get(q)}
        for q in QUANTITIES
        if (array := getattr(attention, q)) is not None
    }
    out["checks"] = [
        {
            "name": c.name,
            "difference": c.difference if np.isfinite(c.difference) else None,
            "tolerance": c.tolerance,
            "holds": c.holds,
        }
        for c in attention.checks
    ]
    out["trusted"] = attention.trusted
    return out


def trace_document(trace: Trace) -> dict[str, Any]:
    """What `attnx trace --json` prints: the sites with the arrays that were written and the checks that were made."""
    return {
        "schema": "attnx/trace",
        "version": __version__,
        "model": trace.model,
        "device": trace.device,
        "sites": [_attention_object(a) for a in trace.attentions],
        "misses": [miss_object(m) for m in trace.misses],
        "notes": list(trace.notes),
    }
