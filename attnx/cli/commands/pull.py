"""`attnx pull ORG/NAME`: bring a model from the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from attnx.cli.options import JsonOption


def pull(
    name: Annotated[str, Argument(metavar="ORG/NAME", help="A model repository with ONNX files.")],
    file: Annotated[
        str | None, Option("--file", "-f", metavar="FILE", help="A certain .onnx file of it: onnx/model_q4.onnx.")
    ] = None,
    revision: Annotated[str | None, Option("--revision", metavar="REV", help="A branch, a tag or a commit.")] = None,
    json: JsonOption = False,
) -> None:
    """Bring a model from the Hugging Face Hub into the Hub's cache: graph, weights, tokenizer, configuration.

    Files that are whole are not fetched again; where the line drops, the download goes on from there. HF_ENDPOINT,
    HF_TOKEN, HF_HOME and HF_HUB_OFFLINE mean what they mean to the Hub's own client.

    Examples:
        attnx pull onnx-community/Qwen2.5-0.5B-Instruct --file onnx/model_q4.onnx
        attnx pull Xenova/bert-base-uncased --revision main
        attnx pull Xenova/opus-mt-en-de --json
    """
    from attnx.catalog.hub import Name, parse_name
    from attnx.catalog.hub import pull as bring
    from attnx.catalog.models import bundled
    from attnx.errors import UsageError

    if name in bundled():
        raise UsageError(f"{name} comes with attnx: there is nothing to pull", f"Use it: -m {name}.")
    parsed = parse_name(name, alone=True)
    if parsed is None:
        raise UsageError(
            f"{name!r} is not the name of a model on the Hub",
            "Give ORG/NAME, for example onnx-community/Qwen2.5-0.5B-Instruct.",
        )
    wanted = Name(parsed.repo, revision or parsed.revision, file or parsed.file)

    from attnx.cli import output

    pulled = bring(wanted, lambda said: output.note(f"fetching {said}"))
    body = {
        "model": pulled.name,
        "folder": pulled.folder,
        "revision": pulled.revision,
        "files": [{"name": name, "bytes": size} for name, size in pulled.files.items()],
    }
    if json:
        from attnx.view.json import document

        output.emit_json(document("attnx/pull", body))
    else:
        from attnx.view.page import line
        from attnx.view.shelf import pulled as show

        use_it = line(f"attnx inspect TEXT -m {pulled.name}")
        output.show(show(pulled.name, str(pulled.folder), pulled.files), use_it)
