"""docs/reference/python.md: the public names of attnx, with their signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from textwrap import dedent
from typing import Any

from reference_markdown import MADE, code, docstring, escaped, table

import attnx
import attnx.errors
import attnx.measure
from attnx import records
from attnx.interventions import perform
from attnx.study import experiments

HEAD = """# Python interface

`import attnx` gives these names; the [guide](../guide/python.md) shows them at work. Shapes: B batch, H query heads,
Hkv key/value heads, Q query positions, K key positions (past included), D head size, Dv value head size, S sites.
"""
EXPERIMENTS = """## Interventions

`model.ablate(source, ...)` and the others take what these functions take after the model.
"""
MEASURES = """## attnx.measure

What every measure computes, and where it is from: [Measures](../explanation/measures.md).
"""
TYPES = """## Types in signatures
"""
NAMED = ((experiments, ("Source", "Token")), (records, ("Array", "Quantity", "Stage", "Component", "Kind", "Origin")))
"""Aliases that signatures use, and where they are."""
ERRORS = """## Errors

Whatever a caller can mend is an `AttnxError`; `hint` says how. A bug of attnx is outside this tree.
"""


def page() -> str:
    """The page."""
    out = [MADE, HEAD]
    for name in attnx.__all__:
        thing = getattr(attnx, name)
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            out.append(_class(name, thing))
        elif inspect.isfunction(thing):
            out.append(_function(f"attnx.{name}", thing, "##"))
    out.append(EXPERIMENTS)
    for function in (*(getattr(experiments, name) for name in sorted(experiments.__all__)), perform.run_with):
        out.append(_function(function.__name__, function, "###"))
    out += [
        MEASURES,
        docstring(attnx.measure.__doc__ or ""),
        _function("measure.describe_heads", attnx.measure.describe_heads, "###"),
    ]
    rows = [row for module, names in NAMED for row in _aliases(module, names)]
    out += [TYPES, table(("name", "stands for", ""), rows)]
    out.append(ERRORS)
    errors = [e for e in vars(attnx.errors).values() if inspect.isclass(e) and issubclass(e, attnx.errors.AttnxError)]
    out.append(
        table(
            ("error", "exit code", ""),
            [(code(e.__name__), str(e.exit_code), escaped((e.__doc__ or "").split("\n")[0])) for e in errors],
        )
    )
    return "\n".join(out)


def _tree(thing: Any) -> Any:
    return ast.parse(dedent(inspect.getsource(thing))).body[0]


def _function(name: str, function: Any, level: str) -> str:
    return f"{level} {name}\n\n{_signature(name, _tree(function))}\n{docstring(function.__doc__ or '')}"


def _signature(name: str, tree: Any, *, method: bool = False) -> str:
    """A signature, an argument a line where it is long."""
    arguments = tree.args
    if method:
        arguments.args = arguments.args[1:]
    returns = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
    given = [re.sub(r"^(\w+: .+?)=", r"\1 = ", one) for one in _split(ast.unparse(arguments))]
    line = f"{name}({', '.join(given)}){returns}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in given) + f"){returns}"
    return f"```python\n{line}\n```\n"


def _split(arguments: str) -> Iterator[str]:
    """Arguments, parted at the commas that are outside brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield arguments[start:at].strip()
            start = at + 1
    yield arguments[start:].strip()


def _class(name: str, thing: Any) -> str:
    """A class: its docstring, its fields, its properties, its methods."""
    tree = _tree(thing)
    out = [f"## {name}\n", docstring(thing.__doc__ or "")]
    fields, methods = [], []
    for at, node in enumerate(tree.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields.append((code(node.target.id), code(ast.unparse(node.annotation)), escaped(_after(tree.body, at))))
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            kinds = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            said = ast.get_docstring(node) or ""
            if kinds & {"property", "cached_property"}:
                returns = code(ast.unparse(node.returns)) if node.returns else ""
                fields.append((code(node.name), returns, escaped(" ".join(said.split("\n\n")[0].split()))))
            else:
                methods.append(
                    f"### {name}.{node.name}\n\n{_signature(node.name, node, method=True)}\n{docstring(said)}"
                )
    return "\n".join((*out, table(("attribute", "type", ""), fields), *methods))


def _aliases(module: Any, names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Types that a module gives names to."""
    body = ast.parse(inspect.getsource(module)).body
    for at, node in enumerate(body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in names:
            yield code(node.targets[0].id), code(ast.unparse(node.value)), escaped(_after(body, at))


def _after(body: list[Any], at: int) -> str:
    """The docstring under a field."""
    below = body[at + 1] if at + 1 < len(body) else None
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
        return " ".join(below.value.value.split())
    return ""
