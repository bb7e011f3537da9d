"""Keys and values that are kept from call to call: what a node reads from a cache, and what it writes back."""

from __future__ import annotations

from attnx.sites.emit import INT64, Emit


def append(e: Emit, past: str, new: str, length: str) -> tuple[str, str]:
    """Keys or values after a past, and what is cached from them.

    Args:
        e: Where the nodes go.
        past: [B,H,P,D], or a buffer [B,H,M,D] of which only `length` rows are filled; "" for none.
        new: [B,H,S,D].
        length: Filled rows as a 1-element tensor; "" where the whole past is filled.

    Returns:
        The keys or values to attend to, [B,H,P+S,D], and the present: the same, or the buffer with `new` written in.
    """
    if not past:
        return new, new
    if not length:
        whole = e.concat([past, new], 2)
        return whole, whole
    filled = e.concat([e.slice(past, 0, length, 2), new], 2)
    buffer = e.concat([filled, e.slice(past, e.dim(filled, 2), e.dim(past, 2), 2)], 2)
    return filled, buffer


def take_rows(e: Emit, x: str, index: str) -> str:
    """Take the rows at int64 [B,N] from [B,H,K,D] -> [B,H,N,D]."""
    batch, count = e.dim(index, 0), e.dim(index, 1)
    row = e.expand(e.unsqueeze(e.arange(batch), 1), batch, count)
    places = e.concat([e.unsqueeze(row, 2), e.unsqueeze(index, 2)], 2)
    return e.transpose(e.op("GatherND", e.transpose(x, 0, 2, 1, 3), places), 0, 2, 1, 3)


def put_rows(e: Emit, buffer: str, new: str, index: str) -> str:
    """[B,H,K,D] with the rows at int64 [B,N] replaced by those of [B,H,N,D]."""
    batch, heads, count = e.dim(new, 0), e.dim(new, 1), e.dim(new, 2)
    sizes = (batch, heads, count, 1)
    parts = [
        e.expand(e.unsqueeze(e.arange(batch), 1, 2, 3), *sizes),
        e.expand(e.unsqueeze(e.arange(heads), 1, 2), *sizes),
        e.expand(e.unsqueeze(e.unsqueeze(index, 1), 3), *sizes),
    ]
    return e.op("ScatterND", buffer, e.concat(parts, 3), new)


def write(e: Emit, past: str, new: str, start: str, total: str, clear: bool = True) -> str:
    """The present of a buffer: the past's first rows, the new rows after them, and zeros.

    Args:
        e: Where the nodes go.
        past: [B,H,C,D], or "" for none.
        new: [B,H,S,D].
        start: How many rows of the past are filled, int64 [B].
        total: The number of rows needed in all, as a 1-element tensor.
        clear: Whether unfilled rows of the past become zeros; they stay as they are where past and present share one
            buffer.

    Returns:
        [B,H,max(C,total),D].
    """
    batch, heads, count, width = (e.dim(new, axis) for axis in range(4))
    filled = e.unsqueeze(start, 1)
    if past:
        capacity = e.dim(past, 2)
        more = e.op("Sub", total, capacity)
        more = e.op("Where", e.op("Greater", more, e.ints(0)), more, e.ints(0))
        buffer = e.concat([past, e.zeros(batch, heads, more, width)], 2)
    else:
        buffer = e.zeros(batch, heads, total, width)
    index = e.op("Add", filled, e.unsqueeze(e.arange(count), 0))
    written = put_rows(e, buffer, new, index)
    if not clear:
        return written
    used = e.op("Less", e.arange(e.dim(written, 2)), e.op("Add", filled, count))
    return e.op("Where", e.unsqueeze(e.unsqueeze(used, 1), 3), written, e.zeros(1))


def resident(e: Emit, total: str, capacity: str, window: int) -> str:
    """How many rows a window-sized cache holds after `total` tokens (int64 [B]); the operator's own formula L(T)."""
    step = e.op("Add", capacity, e.ints(1 - window))
    over = e.op("Sub", total, capacity)
    rounds = e.op("Div", e.op("Add", over, e.op("Sub", step, e.ints(1))), step)
    return e.op("Where", e.at_most(total, capacity), total, e.op("Sub", total, e.op("Mul", step, rounds)))


def slide(e: Emit, past: str, new: str, start: str, total: str, window: int) -> tuple[str, str]:
    """Keys or values of a window-sized cache at their absolute positions, and the cache after this call.

    Args:
        e: Where the nodes go.
        past: [B,H,C,D]; row i of its first L(start) rows holds position start - L(start) + i.
        new: [B,H,S,D].
        start: How many tokens came before, int64 [B].
        total: The largest total number of tokens, as a 1-element tensor.
        window: W, at most C.

    Returns:
        [B,H,total,D] with zeros for positions that have been dropped, and [B,H,C,D].
    """
    batch, heads, count, width = (e.dim(new, axis) for axis in range(4))
    capacity = e.dim(past, 2)
    before = e.unsqueeze(start, 1)
    after = e.op("Add", before, count)
    held = resident(e, before, capacity, window)
    row = e.unsqueeze(e.arange(capacity), 0)
    # Rows that hold nothing are written to an extra row, which is cut off.
    place = e.op("Where", e.op("Less", row, held), e.op("Add", e.op("Sub", before, held), row), total)
    buffer = e.zeros(batch, heads, e.op("Add", total, e.ints(1)), width)
    buffer = put_rows(e, buffer, past, place)
    buffer = put_rows(e, buffer, new, e.op("Add", before, e.unsqueeze(e.arange(count), 0)))
    whole = e.slice(buffer, 0, total, 2)
    kept = resident(e, after, capacity, window)
    padded = e.concat([whole, e.zeros(batch, heads, 1, width)], 2)
    source = e.op("Where", e.op("Less", row, kept), e.op("Add", e.op("Sub", after, kept), row), total)
    return whole, take_rows(e, padded, source)


def beams(e: Emit, x: str, indirection: str) -> str:
    """Keys or values of a beam search, with each past position read from the beam that it came from.

    Args:
        e: Where the nodes go.
        x: [B*W,H,K,D]; the last key is the new one, which each beam takes from itself.
        indirection: int32 [B,W,M]: the beam (0 .. W-1) that holds each position.
    """
    rows, length = e.dim(x, 0), e.dim(x, 2)
    width = e.dim(indirection, 1)
    source = e.reshape(e.slice(e.cast(indirection, INT64), 0, length, 2), rows, length)
    row = e.unsqueeze(e.arange(rows), 1)
    first = e.op("Mul", e.op("Div", row, width), width)
    position = e.unsqueeze(e.arange(length), 0)
    newest = e.op("Equal", position, e.op("Sub", length, e.ints(1)))
    source = e.op("Where", newest, row, e.op("Add", first, source))
    index = e.concat([e.unsqueeze(e.expand(v, rows, length), 2) for v in (source, position)], 2)
    return e.transpose(e.op("GatherND", e.transpose(x, 0, 2, 1, 3), index), 0, 2, 1, 3)
