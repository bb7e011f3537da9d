"""The masks of onnxruntime's own operators, in every form that their kernels read.

These operators hide padding by adding `mask_filter_value` (-10000 by default) to the scores, and hide the future by
adding the lowest float32; a padded cell's weight is 0 only because exp(-10000) is.
"""

from __future__ import annotations

from attnx.sites.emit import INT64, LOWEST, Emit

FILTER = -10000.0
"""mask_filter_value where the node does not set it."""


def padding(e: Emit, mask: str, batch: str, rows: str, total: str, fill: float, starts: bool = False) -> str:
    """What a mask adds to the scores: 0 or `fill`, broadcasting to [B,H,Q,K]; its rank determines its form.

    Args:
        e: Where the nodes go.
        mask: int32. [B] lengths; [2B] exclusive ends, then inclusive starts; [3B+2] lengths, then cumulative starts of
            queries and of keys; [B,K] or [B,Q,K] with 1 for visible cells; [B,1] or [1,1], which is ignored;
            [B,1,M,M], a square of which the last Q of the first K rows apply.
        batch: B as a 1-element tensor.
        rows: Q as a 1-element tensor.
        total: K as a 1-element tensor.
        fill: mask_filter_value.
        starts: Whether a 1-D mask of length 2B holds ends and starts.

    Raises:
        ValueError: The rank of the mask is unknown.
    """
    rank = e.rank(mask)
    wide = e.cast(mask, INT64)
    zero = e.ints(0)
    if rank == 1:
        j = e.arange(total)
        visible = e.op("Less", j, e.unsqueeze(e.slice(wide, 0, batch, 0), 1))
        if starts:
            twice = e.op("Add", batch, batch)
            first = e.slice(e.concat([wide, e.expand(zero, batch)], 0), batch, twice, 0)
            paired = e.op("Equal", e.dim(mask, 0), twice)
            first = e.op("Where", paired, first, e.expand(zero, batch))
            visible = e.all_of(visible, e.at_most(e.unsqueeze(first, 1), j))
        visible = e.unsqueeze(visible, 1, 2)
    elif rank == 2:
        width = e.dim(mask, 1)
        ignored = e.op("And", e.op("Equal", width, e.ints(1)), e.op("Not", e.op("Equal", width, total)))
        visible = e.unsqueeze(e.op("Or", e.op("Greater", wide, zero), ignored), 1, 2)
    elif rank == 3:
        visible = e.unsqueeze(e.op("Greater", wide, zero), 1)
    elif rank == 4:
        square = e.slice(e.slice(wide, e.op("Sub", total, rows), total, 2), 0, total, 3)
        visible = e.op("Greater", square, zero)
    else:
        raise ValueError(f"the rank of the mask is {rank}")
    return e.op("Where", visible, e.number(0.0), e.number(fill))


def past_and_future(e: Emit, rows: str, total: str, past: str) -> str:
    """Which cells are not in the future: [Q,K], True where key <= query + `past` (a 1-element tensor)."""
    i = e.op("Add", e.unsqueeze(e.arange(rows), 1), past)
    return e.at_most(e.arange(total), i)


def hide_future(e: Emit, term: str, rows: str, total: str, past: str, spare_last: bool = False) -> str:
    """A mask term with the future set to the lowest float32.

    Args:
        e: Where the nodes go.
        term: What the padding adds, or "" for nothing.
        rows: Q as a 1-element tensor.
        total: K as a 1-element tensor.
        past: How many keys come before the first query, as a 1-element tensor.
        spare_last: Whether the last query sees everything, as in the kernels, whose loop ends before it; this makes a
            difference only where there are more keys than queries plus past.
    """
    visible = past_and_future(e, rows, total, past)
    if spare_last:
        last = e.op("Equal", e.unsqueeze(e.arange(rows), 1), e.op("Sub", rows, e.ints(1)))
        visible = e.op("Or", visible, last)
    return e.op("Where", visible, term or e.number(0.0), e.number(LOWEST))
