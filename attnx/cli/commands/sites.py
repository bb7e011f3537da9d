"""`attnx sites MODEL`: what attention a graph holds; nothing is run."""

from __future__ import annotations

from typing import Annotated

import typer

from attnx.cli.options import JsonOption, ModelArgument


def sites(
    model: ModelArgument,
    places: Annotated[bool, typer.Option("--places", help="Also show which tensor holds each quantity.")] = False,
    feed_template: Annotated[
        bool, typer.Option("--feed-template", help="Instead, print Python that writes a feed for --inputs.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List every attention computation in a model, and every near miss with its reason. The model is not run.

    Examples:
        attnx sites minilm
        attnx sites model.onnx --places
        attnx sites model.onnx --feed-template
    """
    from attnx import model as pipeline
    from attnx.cli import output
    from attnx.run.encdec import sites_of
    from attnx.study.precision import of_model

    opened = pipeline.open(model)
    if feed_template:
        from attnx.run.example import example
        from attnx.view.template import feed_template as template

        output.write(template([(slot.name, slot.type, slot.shape, array) for slot, array in example(opened)]))
        return
    found = opened.find()
    sides = [side for side in (opened.encoder, opened) if side is not None]
    output.notes(note for side in sides for note in side.find().notes(side.sessions.processor))
    there = sites_of(opened)
    misses = (*(opened.encoder.misses if opened.encoder is not None else ()), *found.misses)
    files = [of_model(side.sessions) for side in sides]
    if json:
        from attnx.view.contract import sites_document

        output.emit_json(sites_document(opened.name, there, misses, files))
    else:
        from attnx.view.page import line
        from attnx.view.sites import sites_table

        output.show(
            *(line(str(one)) for one in files),
            sites_table(there, misses, places=places, elsewhere="--json has everything"),
        )
