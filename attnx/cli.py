"""The Typer app: a command a file, loaded when it is called, and the one place where errors become messages."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from attnx import __version__
from attnx.errors import INTERRUPTED, RUN, AttnxError

COMMANDS: dict[str, str] = {
    "trace": "Every array of a run to .npz or .safetensors, for scripts.",
    "sites": "What was found in a graph, where, and what was refused and why.",
}
"""Name -> one line of help. Each is attnx/commands/NAME.py with a function of that name."""


class _Commands(TyperGroup):
    """Finds a command by importing its file; help lists them without."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"attnx.commands.{cmd_name}")
        one = typer.Typer(add_completion=False, rich_markup_mode=None)
        one.command(cmd_name, help=COMMANDS[cmd_name])(getattr(module, cmd_name))
        return typer.main.get_command(one)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f"Did you mean `attnx {near[0]}`?" if near else "`attnx --help` lists the commands."
            raise _usage(f"there is no command {args[0]!r}", hint)
        return super().resolve_command(ctx, args)


def _usage(message: str, hint: str) -> AttnxError:
    from attnx.errors import UsageError

    return UsageError(message, hint)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnx {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """See what each token attends to, in any Transformer exported to ONNX."""


def report(error: AttnxError) -> None:
    """Write an error and its hint to stderr, control characters made visible."""
    from attnx.plain import visible

    sys.stderr.write(f"attnx: {visible(error.message)}\n")
    if error.hint:
        sys.stderr.write(f"  {visible(error.hint)}\n")


def main(args: list[str] | None = None) -> None:
    """Run a command line; never shows a traceback for a user's mistake."""
    try:
        app(args, standalone_mode=True)
    except AttnxError as error:
        report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("attnx: interrupted\n")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has gone; what it did not read is nobody's loss.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except MemoryError:
        report(AttnxError("there is not enough memory for this", "Use a shorter text, or fewer layers (--layer)."))
        sys.exit(RUN)
