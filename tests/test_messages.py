"""Every error that attnx raises is worded alike: what was found, then what to do, as CONTRIBUTING.md says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnx
from attnx import errors

SOURCE = Path(attnx.__file__).parent
TREE = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.AttnxError)}
NAMES = {"Parquet"}
"""Names with a capital that a message may begin with; what is all capitals, or has a sign in it, is one anyway."""
CODE = {"attnx", "pip", "randn", "numpy.save", "mkdir"}
"""What a hint may begin with in lower case: something to type."""
VALUE = "\0"
"""Stands for what is known only when it is raised."""


def literal(node: ast.expr | None) -> str | None:
    """The text of a string, f-string, sum of them or wording; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Wording":
        return literal(node.args[0])
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = literal(node.left), literal(node.right)
        return None if left is None and right is None else (left or VALUE) + (right or VALUE)
    return None


def raised(source: str) -> Iterator[tuple[int, str | None, str | None]]:
    """Line, message and hint of every error that is made in a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            if name in TREE:
                given = {word.arg: word.value for word in node.keywords}
                message = node.args[0] if node.args else given.get("message")
                hint = node.args[1] if len(node.args) > 1 else given.get("hint")
                yield node.lineno, literal(message), literal(hint)


def plain(text: str) -> str:
    """A template without its clauses' brackets, its arguments as a word in capitals."""
    return re.sub(r"<[a-z_\0][^<>]*>", "ARGUMENT", text).replace("[", "").replace("]", "")


def wrong_message(text: str) -> str:
    """What is wrong with how a message is worded; "" where nothing is."""
    text = plain(text)
    first = re.match(r"[A-Za-z]\w*", text)
    if first and first[0][0].isupper() and first[0] not in NAMES and not re.search(r"[A-Z0-9_]", first[0][1:]):
        return "begins with a capital"
    return "ends with a full stop" if text.rstrip().endswith(".") and not text.rstrip().endswith("...") else ""


def wrong_hint(text: str) -> str:
    """What is wrong with how a hint is worded; "" where nothing is."""
    text = plain(text)
    if text and text[0].islower() and text.split()[0].rstrip(",") not in CODE:
        return "begins in lower case, and is no command"
    command = re.search(r"(^|: |Try )(attnx|pip|mkdir|--\w)[^.]*( \S+)*$", text)
    return "" if not text or text[-1] in f".?{VALUE}" or command else "is no sentence, and no command"


def test_every_error_is_worded_alike() -> None:
    found, wrong = 0, []
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text("utf-8")
        for line, message, hint in raised(source) if any(name in source for name in TREE) else ():
            found += message is not None
            for text, said in ((message, wrong_message(message or "")), (hint, wrong_hint(hint or ""))):
                if said:
                    wrong.append(f"{path.relative_to(SOURCE)}:{line}: {text!r} {said}")
    assert found > 300
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("message", "hint", "bad"), [
    ("there is no layer 7", "It has layers 0 to 5.", False),
    ("W_O is small", "Try --lengths 64,256", False),
    ("HF_HUB_OFFLINE is set", "pip install 'attnx[scan]'", False),
    ("\0 is there twice", "Is it another model's?", False),
    ("<top={top}> shows nothing", "Leave out <top>[, or <words>].", False),
    ("There is no layer 7", "", True),
    ("<top> shows nothing.", "", True),
    ("<top> shows nothing", "[leave out <top>.]", True),
    ("<top> shows nothing", "Leave out <top>", True),
    ("there is no layer 7.", "", True),
    ("there is no layer 7", "it has layers 0 to 5.", True),
    ("there is no layer 7", "It has layers 0 to 5", True),
])  # fmt: skip
def test_what_counts_as_alike(message: str, hint: str, bad: bool) -> None:
    assert bool(wrong_message(message) or wrong_hint(hint)) is bad


def test_messages_are_read_from_source() -> None:
    source = 'raise UsageError(f"No {x}" "." if y else "a", hint="b")\nerrors.InputError("A" + z)\n'
    source += 'UsageError(Wording("<a>", b=1), Wording("c" + d))\n'
    assert list(raised(source)) == [(1, None, "b"), (2, "A\0", None), (3, "<a>", "c\0")]
