"""What functions take: of one that is there, and of all in a source."""

import ast
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any


def arguments(function: Callable[..., Any]) -> set[str]:
    """The arguments of a function."""
    return set(signature(function).parameters) - {"self"}


def all_arguments(source: str) -> Iterator[str]:
    """The arguments of every function, and the fields of every class, in a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
