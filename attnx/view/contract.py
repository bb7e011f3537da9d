"""The JSON for scripts: a model's sites, and a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnx.records import QUANTITIES, Attention, Miss, Site, Trace
from attnx.view.json import document, tidy


def sites_document(
    model: str, sites: Sequence[Site], misses: Sequence[Miss], files: Sequence[object] = ()
) -> dict[str, Any]:
    """A model's sites and near misses; the schema is attnx/data/schema/sites.json."""
    return document("attnx/sites", {"model": model, "files": files, "sites": sites, "misses": misses})


def trace_document(trace: Trace, saved: Path | None = None) -> dict[str, Any]:
    """A run: the sites with the arrays that were written and the checks that were made.

    Args:
        trace: The run.
        saved: The file with the arrays.

    Returns:
        The schema is attnx/data/schema/trace.json.
    """
    return document(
        "attnx/trace",
        {
            "model": trace.model,
            "device": trace.device,
            "tokens": trace.tokens,
            "memory": trace.memory,
            "generated": trace.generated,
            "saved": saved,
            "sites": [_attention_object(a) for a in trace.attentions],
            "misses": trace.misses,
            "notes": trace.notes,
        },
    )


def _attention_object(attention: Attention) -> dict[str, Any]:
    """The site's own fields, with the results of the run."""
    out: dict[str, Any] = tidy(attention.site)
    out["arrays"] = {
        q: {
            "name": f"attention.{attention.site.index}.{q}",
            "shape": list(array.shape),
            "origin": attention.origin.get(q, "tapped"),
        }
        for q in QUANTITIES
        if (array := getattr(attention, q)) is not None
    }
    out["checks"] = tidy(attention.checks)
    out["trusted"] = attention.trusted
    return out
