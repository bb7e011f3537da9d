"""The Typer app: one file for each command, loaded when it is called; the one place where errors become messages."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pkgutil import iter_modules
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnx.cli import commands, interrupt, panels, terminal
from attnx.cli.numeric import strict
from attnx.cli.refusals import of_system, shortened
from attnx.errors import INTERRUPTED, OK, AttnxError, UsageError
from attnx.version import __version__

HELP = {"help_option_names": ["-h", "--help"]}
"""Options that show the help: of a command too, which keeps the names that it is first asked with."""
WIDE = 9
"""Cells of the longest command's name, so that the commands line up."""
HEAD = """\
See what each token attends to, in any Transformer exported to ONNX.
Usage: attnx COMMAND [OPTIONS]   attnx COMMAND --help   attnx "A text."
"""
"""What the help begins with; without a command, a text is one of `inspect`."""
TERMS = "Terms that it uses: docs/reference/glossary.md in the repository"
"""What the help ends with."""


@cache
def names() -> tuple[str, ...]:
    """Names of the commands: attnx/cli/commands/NAME.py holds a function NAME."""
    there = sorted(module.name for module in iter_modules(commands.__path__))
    return tuple(name for panel in panels.grouped(there).values() for name in panel)


@cache
def command(name: str) -> Any:
    """The command of a name, as the option parser needs it. Its file is imported the first time."""
    module = import_module(f"attnx.cli.commands.{name}")
    one = typer.Typer(add_completion=False, rich_markup_mode=None)
    one.command(name, cls=_Command, context_settings=HELP)(getattr(module, name))
    return panels.arrange(strict(typer.main.get_command(one)))


def summary(name: str) -> str:
    """What a command does: the first line of its file after the colon. The file is read, not imported."""
    loader: Any = getattr(find_spec(f"attnx.cli.commands.{name}"), "loader", None)
    line = (loader.get_source(f"attnx.cli.commands.{name}") or "").split("\n", 1)[0]
    said = line.partition(": ")[2].strip().rstrip('"')
    return said[:1].upper() + said[1:]


class _Command(TyperCommand):
    """A command that must not overwrite what it reads, with its help in panels."""

    examples: Sequence[str] = ()

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        super().format_help_text(ctx, formatter)
        panels.write_examples(self, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels.write(self, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not any("-m" in p.opts for p in self.params):
            from attnx.cli.named_models import models_in_place

            args = models_in_place(self.params, args)
        # An empty path would be read as ".", the folder that one stands in.
        paths = {name for p in self.params for name in p.opts if p.type.name in ("path", "file", "directory")}
        for before, value in pairwise(["", *args]):
            option, equals, given = value.partition("=")
            name = before if not value and before in paths else option if equals and not given else ""
            if name in paths:
                raise UsageError(f"{name} is empty", "Give the name of a file.")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        from attnx.cli.overwriting import check

        check(ctx.params, {str(p.name): getattr(p, "metavar", None) for p in self.params})
        return super().invoke(ctx)


class _Commands(TyperGroup):
    """Finds a command by importing its file; the list in the help needs no import."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(names())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return command(cmd_name) if cmd_name in names() else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write everything on one screen of 80 by 24."""
        options = ["/".join(sorted(p.opts, key=len)) for p in self.get_params(ctx) if p.param_type_name == "option"]
        formatter.write(HEAD)
        panels.write_commands(names(), formatter)
        formatter.write(f"Options: {', '.join(options)}\n{TERMS}\n")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in names():
            raise _unknown(args[0])
        return super().resolve_command(ctx, args)


def _near(word: str) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(word, names(), 1)


def _unknown(word: str) -> UsageError:
    import shlex

    near = _near(word)
    hint = f"Did you mean `attnx {near[0]}`?" if near else "`attnx --help` lists the commands."
    as_text = f" As a text: attnx inspect {shlex.quote(word)}." if word.isprintable() and len(word) < 40 else ""
    return UsageError(f"there is no command {word!r}", hint + as_text)


def with_command(args: list[str]) -> list[str]:
    """A command line that begins with a text is one of `attnx inspect`.

    A text contains a space, or is a single word that resembles no command. What looks like a mistyped command
    (`inspct`), or like a command that does not exist (`analyse "A text."`), is left as it is, and refused.
    """
    if not args or (args[0].startswith("-") and args[0] != "-") or args[0] in names():
        return args
    alone = len(args) == 1 or args[1].startswith("-")
    if len(args[0].split()) > 1 or (alone and not _near(args[0].lower())):
        return ["inspect", *args]
    return args


app = typer.Typer(
    cls=_Commands,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnx {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """See what each token attends to, in any Transformer exported to ONNX."""
    if context.invoked_subcommand is None:
        typer.echo(_begin_with())


def _begin_with() -> str:
    """What `attnx` alone shows: less than a screen, to begin with."""
    first = "\n".join(f"  {name.ljust(WIDE)}  {summary(name)}" for name in panels.FIRST)
    return f"""\
See what each token attends to, in any Transformer exported to ONNX.

Usage: attnx COMMAND [OPTIONS]
       attnx "A text."  (short for attnx inspect "A text.")

To begin with:
{first}

An example:
  attnx "The animal didn't cross the street because it was too tired."

attnx --help lists all {len(names())} commands; attnx COMMAND --help explains one."""


def report(error: AttnxError, args: Sequence[str] = ()) -> None:
    """Write an error and its hint to stderr, in terms of the command's options; control characters are made visible."""
    from attnx.cli.plain import say
    from attnx.cli.wording import worded

    at_hand = next((command(name) for name in args[:1] if name in names()), None)
    say(shortened(worded(error.message, at_hand), 2000))
    if hint := worded(error.hint, at_hand):
        say(hint, first="  ", under="  ")


def _misused(error: Any, args: Sequence[str]) -> UsageError:
    """The option parser's complaint about a command line, as one of our errors."""
    context = getattr(error, "ctx", None)
    # For an option without its value, the parser does not report which command it belongs to.
    path = getattr(context, "command_path", None) or " ".join(["attnx", *(a for a in args[:1] if a in names())])
    message: str = error.format_message()
    if "unexpected extra argument" in message:
        taken = getattr(getattr(context, "command", None), "params", ())
        text = any(getattr(p, "metavar", None) == "TEXT" and p.param_type_name == "argument" for p in taken)
        quotes = 'A text of several words goes in quotes: "The animal was tired." ' if text else ""
        return UsageError(message[:1].lower() + message[1:].rstrip("."), f"{quotes}`{path} --help` lists the options.")
    after = 'Options follow the command or the text: attnx "A text." -m MODEL. ' if path == "attnx" else ""
    return UsageError(message[:1].lower() + message[1:].rstrip("."), f"{after}`{path} --help` lists the options.")


def run(args: list[str]) -> int:
    """Run a command line.

    Args:
        args: Without the program's name; an empty list shows what to begin with.

    Returns:
        The exit code. An error that is not a user's mistake is raised, and shows its traceback.
    """
    terminal.settle()
    args = with_command(args)
    try:
        try:
            code = app(args, standalone_mode=False, prog_name="attnx")
            sys.stdout.flush()
            if interrupt.came():  # and other code (an event loop) treated it as a request to stop
                code = INTERRUPTED
        except typer.Abort:
            raise KeyboardInterrupt from None
        except SystemExit as ended:
            if isinstance(ended.__context__, OSError) and ended.__context__.errno == errno.EPIPE:
                return OK  # the reader of the help has closed the pipe
            raise
        except Exception as error:
            if hasattr(error, "format_message") and hasattr(error, "exit_code"):
                raise _misused(error, args) from None
            raise
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe; it does not need the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        if interrupt.came():  # and a library turned it into another error
            code = INTERRUPTED
        elif isinstance(error, AttnxError):
            report(error, args)
            return error.exit_code
        elif (told := of_system(error)) is not None:
            if isinstance(error, OSError) and error.filename is None:  # flushing stdout would fail again
                with contextlib.suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            report(told, args)
            return told.exit_code
        else:
            raise
    if code == INTERRUPTED:
        sys.stderr.write("attnx: interrupted\n")
    return code if isinstance(code, int) else OK


def begin(args: list[str]) -> int:
    """Run the command line of a process that does nothing else; an interrupt ends it quietly."""
    try:
        interrupt.watch()
        code = run(args)
        interrupt.done()
    except KeyboardInterrupt:
        interrupt.done()
        code = INTERRUPTED
    return code
