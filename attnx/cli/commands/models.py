"""`attnx models`: the bundled models, and those in the Hub's cache."""

from __future__ import annotations

from attnx.cli.options import JsonOption


def models(json: JsonOption = False) -> None:
    """List the models that -m takes by name, with their size, layers and heads, kind and precision.

    Examples:
        attnx models
        attnx models --json
        attnx inspect "The cat sat." -m tiny-gpt
    """
    from dataclasses import replace

    from attnx.cli import output
    from attnx.cli.wording import worded
    from attnx.study.shelf import list_models

    found = [replace(m, problem=worded(m.problem)) for m in list_models()]
    if json:
        from attnx.view.json import document

        output.emit_json(document("attnx/models", {"models": found}))
    else:
        from attnx.view.shelf import shelf

        rows = [
            (m.name, m.source, m.size, m.layers, m.heads, m.kind, m.precision, m.revision, m.problem) for m in found
        ]
        hint = "attnx inspect TEXT -m MODEL runs one; attnx pull ORG/NAME fetches more."
        output.show(shelf(rows, hint))
