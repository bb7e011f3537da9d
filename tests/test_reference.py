"""Pages that are made from the program are what it makes now."""

import re
import sys
from pathlib import Path

import pytest
import typer

from attnx.cli import app as cli

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import reference  # noqa: E402
import reference_markdown  # noqa: E402


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_what_the_program_gives(name: str) -> None:
    assert not reference.stale(name), f"regenerate docs/{name} with `python scripts/reference.py`"


def test_every_command_and_option_is_there() -> None:
    page = (reference.DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    shared = page.partition("## Options of many commands\n")[2]
    root = typer.main.get_command(cli.app)
    for name in cli.names():
        own = page.partition(f"### attnx {name}\n")[2].partition("\n### ")[0]
        assert own, name
        for parameter in root.get_command(None, name).params:  # type: ignore[attr-defined]
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert re.search(rf"`[^`]*{re.escape(option)}\b", own + shared), (name, option)


def test_links_within_a_page_lead_to_its_headings() -> None:
    for name in reference.PAGES:
        page = (reference.DOCS / name).read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^\w -]", "", line.lower()).strip().replace(" ", "-")
            for line in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
        }
        assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= headings


def test_nothing_in_a_text_is_markup() -> None:
    assert reference_markdown.escaped("a_b * |c| <d> [S,H] `e_f|g`") == (
        r"a\_b \* &#124;c&#124; &lt;d&gt; \[S,H\] `e_f|g`"
    )
    assert reference_markdown.table(("a",), [("x\ny",)]) == "| a |\n|---|\n| x y |\n"
