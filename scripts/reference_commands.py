"""docs/reference/commands.md: every command, as its own help has it."""

from __future__ import annotations

import re
from collections import Counter
from inspect import cleandoc
from itertools import groupby
from typing import Any

import typer
from reference_markdown import MADE, code, docstring, escaped, table

import attnx.errors
from attnx.cli import app as cli
from attnx.cli import panels

SHARED = 6
"""An option that so many commands have, all with the same words, is described once."""
HEAD = """# Commands

Each command, as `attnx COMMAND --help` lists it in a terminal. Layers, heads and positions count from 0. Words that
only attnx uses are in the [glossary](glossary.md); what `--json` prints is under [JSON documents](json.md).
"""
TAIL = """## Exit codes

`0`: done. `130`: interrupted. A mistake of the user's is a message and a hint on stderr, and one of these:
"""


def page() -> str:
    """The page."""
    root: Any = typer.main.get_command(cli.app)
    found = {name: _options(root.get_command(None, name), name) for name in cli.names()}
    count = Counter(option for options in found.values() for option in options)
    shared = [option for option, times in count.items() if times >= SHARED]
    out = [MADE, HEAD]
    for title, names in panels.grouped(cli.names()).items():
        out.append(f"## {title}\n")
        out.append(table(("command", ""), [(f"[{name}](#attnx-{name})", cli.summary(name)) for name in names]))
        out += [_command(root.get_command(None, name), name, found[name], shared) for name in names]
    out.append("## Options of many commands\n\nA command that has them names them under its own.\n")
    out.append(_tables(shared))
    out.append(TAIL)
    out.append(_codes())
    return "\n".join(out)


Option = tuple[str, str, str]
"""Panel, how it is written, what it does."""


def _context(command: Any, name: str) -> Any:
    return command.context_class(command, info_name=f"attnx {name}")


def _options(command: Any, name: str) -> list[Option]:
    """The options of a command in the order of its help."""
    context = _context(command, name)
    place = {option: at for panel in panels.OPTIONS.values() for at, option in enumerate(panel)}
    order = [*panels.OPTIONS, panels.REST]
    found = [p for p in command.params if p.param_type_name == "option" and not p.hidden]

    def key(p: Any) -> tuple[int, int]:
        panel = p.rich_help_panel or panels.REST
        return order.index(panel) if panel in order else len(order), place.get(max(p.opts, key=len).lstrip("-"), 99)

    return [(p.rich_help_panel or panels.REST, *p.get_help_record(context)) for p in sorted(found, key=key)]


def _command(command: Any, name: str, options: list[Option], shared: list[Option]) -> str:
    context = _context(command, name)
    usage = " ".join((f"attnx {name}", *command.collect_usage_pieces(context)))
    out = [f"### attnx {name}\n", f"```text\n{usage}\n```\n", docstring(cleandoc(command.help or ""))]
    arguments = [p.get_help_record(context) for p in command.params if p.param_type_name == "argument"]
    out.append(table(("argument", ""), [(code(a[0].strip("[]")), escaped(a[1])) for a in arguments if a]))
    out.append(_tables([option for option in options if option not in shared]))
    also = [code(re.findall(r"--[\w-]+", option[1])[0]) for option in options if option in shared]
    if also:
        out.append(f"Also [of many commands](#options-of-many-commands): {', '.join(also)}.\n")
    if command.examples:
        out.append("```text\n" + "\n".join(command.examples) + "\n```\n")
    return "\n".join(part for part in out if part)


def _tables(options: list[Option]) -> str:
    """One table: panels in a column of their own."""
    order = {panel: at for at, panel in enumerate((*panels.OPTIONS, panels.REST))}
    rows = []
    for panel, found in groupby(sorted(options, key=lambda o: order.get(o[0], len(order))), key=lambda o: o[0]):
        for at, (_, written, said) in enumerate(found):
            rows.append((panel if at == 0 else "", code(written), escaped(said)))
    return table(("", "option", ""), rows)


def _codes() -> str:
    doc = attnx.errors.__doc__ or ""
    tree = next(block for block in doc.split("\n\n") if "AttnxError\n" in block)
    return f"```text\n{cleandoc(tree)}\n```\n"
