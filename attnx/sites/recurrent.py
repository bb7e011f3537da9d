"""Recurrent models, the ancestors of attention: how many sequential steps a graph runs, and with which operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.load.nodes import op_name

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph

_CELLS = {
    **{cell: cell for cell in ("LSTM", "GRU", "RNN")},
    "com.microsoft.DynamicQuantizeLSTM": "LSTM",
    "com.microsoft.AttnLSTM": "LSTM",
}
"""Operator -> its common name."""


def describe(graph: Graph) -> str | None:
    """One sentence on the recurrent parts of a graph; None where it has none.

    A recurrent layer reads a sequence of n tokens in n steps, each waiting for the one before it, and two tokens at a
    distance d are d steps apart; self-attention takes one step, and any two tokens are 1 step apart.
    Source: Vaswani et al. 2017, table 1.
    """
    found: dict[str, int] = {}
    both_ways = 0
    for node in graph.nodes:
        if (cell := _CELLS.get(op_name(node))) is not None:
            found[cell] = found.get(cell, 0) + 1
            way = next((a.s for a in node.attribute if a.name == "direction"), b"")
            both_ways += way == b"bidirectional"
    if not found:
        return None
    layers = " and ".join(f"{count} {cell} layer{'s' if count > 1 else ''}" for cell, count in found.items())
    ways = f", {both_ways} of them both ways" if both_ways else ""
    return (
        f"recurrent: {layers}{ways}. Each reads its tokens one after another, n steps for n tokens, and two tokens are "
        "as many steps apart as they are tokens apart; no weights say what a step of it looked at."
    )
