"""`attnx sites MODEL`: what was found in a graph, and what was refused. The model is not run."""

from __future__ import annotations

from typing import Annotated

import typer

from attnx.options import JsonOption


def sites(
    model: Annotated[str, typer.Argument(help="An .onnx file, a folder, or the name of a bundled model.")],
    json: JsonOption = False,
) -> None:
    """List every attention computation in a model, and every near miss with its reason."""
    from attnx import pipeline
    from attnx.output import emit_json
    from attnx.view.contract import sites_document

    opened = pipeline.open(model)
    found = opened.find()
    if json:
        emit_json(sites_document(opened.name, found.sites, found.misses))
    else:
        from attnx.output import show
        from attnx.view.sites import sites_table

        show(sites_table(found.sites, found.misses))
