"""`attnx qkv TEXT`: one query-key pair taken apart, from q and k to context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import SENSES, ExplainOption, ForceOption, QueryOption, SaveOption, SiteOption, TopOption, starts
from attnx.cli.start import Start
from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.graph.axes.projections import Projection, Projections
    from attnx.measure.looks import Look
    from attnx.measure.pair import Pair
    from attnx.records import Site, Trace
    from attnx.view.columns import Columns

TOP = 8
"""How many dimensions are listed without --top."""


@starts("generate", *SENSES, "json")
def qkv(
    run: Start,
    query: QueryOption = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="TOKEN", help="The key token, written like --query; by default the strongest."),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head", "-H", metavar="L.H", help="The head; else the one worth opening: as inspect has it, or --query."
        ),
    ] = None,
    site: SiteOption = None,
    top: TopOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="Dimensions, every head's share, and the matrices, below one another.")
    ] = False,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Take one query-key pair apart: from q and k, dimension by dimension, to what the value adds to the output.

    Examples:
        attnx qkv "The animal slept because it was tired."
        attnx qkv "The animal slept because it was tired." --query it --key animal
        attnx qkv "The cat slept; it was tired." --head 5.11 --query it --json
    """
    from attnx.cli import output, saving
    from attnx.measure import looks
    from attnx.measure import pair as measure
    from attnx.records import QUANTITIES
    from attnx.study.grouping import taken_together
    from attnx.study.output_weights import mixed, projections_of
    from attnx.study.selection import head_of, layers_of, positions
    from attnx.study.strongest import strongest_layer
    from attnx.study.worth_opening import opening
    from attnx.view.reporting import base, heading, site_object

    saving.check(save, force=force)
    opened, prompt = run.opened, run.prompt
    layers = layers_of([head] if head else [], None)
    if head is None and site is None and (there := strongest_layer(opened, prompt, query, key)) is not None:
        layers = (there[0],)
        head = None if there[1] is None else f"{there[0]}.{there[1]}"
    trace, doubts = run.trace(QUANTITIES, layers=layers, site=site)
    chosen = None if head is None else head_of(trace, head)
    last = trace.attentions[-1 if chosen is None else chosen[0]]
    queries = () if query is None else positions(trace.queries_of(last), query)
    keys = () if key is None else positions(trace.keys_of(last), key)

    def strongest(one: Trace) -> looks.Look:
        if chosen is None and not queries and not keys:
            return opening(one)
        first = [at[0] if at else None for at in (queries, keys)]
        return looks.strongest(one, head=chosen, query=first[0], key=first[1])

    at, trace, about = taken_together(trace, (queries, query or ""), (keys, key or ""), strongest)
    assert at.query is not None
    attention = trace.attentions[at.site]
    gram, weights = mixed(opened, attention.site, prompt.inputs)
    found = measure.pair(trace, at.site, at.head, at.query, at.key, weights, gram)
    around = projections_of(opened, attention.site, prompt.inputs)
    notes = [*trace.notes, *doubts, *about]
    output.notes(notes)
    whole: dict[str, Any] = {}
    if run.output.json or save is not None:
        from attnx.view.json import document

        body: dict[str, Any] = {
            **base(trace),
            "head": site_object(trace, at.site, at.head),
            "query": {"position": at.query, "piece": found.query.strip(), "positions": queries or (at.query,)},
            "key": {"position": at.key, "piece": found.key.strip(), "positions": keys or (at.key,)},
            "steps": found.steps,
            "products": found.products,
            "vectors": found.vectors,
            "largest": found.largest,
            "heads": found.heads,
            "projections": _shapes(around, attention.site),
            "notes": [*notes, *found.notes, *found.heads.notes],
        }
        whole = document("attnx/qkv", body)
        if save is None:
            output.emit_json(whole)
            return
    import numpy as np

    from attnx.view.page import line
    from attnx.view.screen import choice, screen

    where = f"{trace.labels[at.site]} H{at.head}"
    title = f"{where} · {found.query.strip()}@{at.query} → {found.key.strip()}@{at.key}"
    apart = np.isfinite(found.products.values).all()
    listed = _products(found, top or TOP, explain)
    # What --top asks for is there whatever the room; the bars give way to it.
    less = [["", _strip(found)], []] if top is None else [["", listed]]
    parts: list[Any] = [choice(["", _strip(found), listed], *less)] if apart else []
    parts.append(choice(["", _heads(found, trace, at.site, explain)], [line(_most(found, trace.labels[at.site]))]))
    parts.append(choice(["", _projections(around, attention.site, explain)], []))
    hints = [] if every else ["dimensions, heads and matrices: --all"]
    hints += [] if explain else ["formulas, sources: --explain"]
    steps = _steps(title, found, attention.site, explain)
    views = [screen(line(heading(trace)), steps, *parts, said=output.lines_of(notes), every=every, hints=hints)]
    columns = saving.columns_of(_rows(found, attention.site, trace.labels[at.site], at))
    saving.give(views, columns, whole, json=run.output.json, path=save, force=force)


def _rows(found: Pair, site: Site, label: str, at: Look) -> list[dict[str, Any]]:
    """A line for each value: the steps, the vectors and their products by dimension, every head's share."""
    from attnx.cli.saving import rows_of

    layer = {"layer": site.layer, "layer_label": label}
    query = {"query": at.query, "query_label": found.query.strip()}
    pair = {
        **layer,
        "head": at.head,
        "head_label": f"H{at.head}",
        **query,
        "key": at.key,
        "key_label": found.key.strip(),
    }
    shares = rows_of(found.heads, {**layer, **query})
    return [*rows_of(found.steps, pair), *rows_of(found.vectors, pair), *rows_of(found.products, pair), *shares]


def _steps(title: str, found: Pair, site: Site, explain: bool) -> Columns:
    """From the sizes of q and k to the weight, and on to the context."""
    import numpy as np

    from attnx.view.columns import column, columns
    from attnx.view.reporting import sourced

    scale = site.scale
    said = "scale not known" if scale is None else f"× {scale:.4g}" if isinstance(scale, float) else "× a scale a head"
    meaning = {
        "|q|": "size of the query vector",
        "|k|": "size of the key vector",
        "cosine": "q·k / (|q| |k|)",
        "q·k": "the score: products of all dimensions, added",
        "scaled": said,
        "masked": f"softmax's input, {'heads mixed' if site.heads_mixed else 'mask and bias added'}",
        "weight": "after the softmax",
        "|v|": "size of the key's value vector",
        "|weight v|": "what of it is carried over",
        "share of context": "(weight v)·context / |context|²",
        "|context|": "size of the head's output",
    }
    names = found.steps.axes[0].labels
    if np.isnan(found.steps.values[names.index("masked")]):
        meaning["masked"] = "softmax's input: not found in this graph"
    return columns(
        title,
        [
            column("step", names, whole=True),
            column("value", found.steps.values, decimals=4),
            column("", [meaning[name] for name in names], whole=True),
        ],
        notes=[sourced(found.steps) if explain else "", *found.notes],
    )


def _strip(found: Pair) -> Any:
    """Q x k by dimension, as one strip."""
    from attnx.view.strip import strip

    return strip(found.products)


def _products(found: Pair, count: int, explain: bool) -> Columns:
    """The dimensions with the largest products."""
    from attnx.view.columns import column, columns
    from attnx.view.reporting import sourced

    kept = found.largest[:count]
    q, k, _ = found.vectors.values
    products = found.products.values
    reach = float(abs(products).max(initial=0.0))
    left = len(products) - len(kept)
    rest = float(products.sum() - products[list(kept)].sum())
    return columns(
        "",
        [
            column("dimension", [str(at) for at in kept], whole=True),
            column("q", q[list(kept)]),
            column("k", k[list(kept)]),
            column("q × k", products[list(kept)], bar=(-reach, reach)),
        ],
        notes=[
            (f"{counted(left, 'more dimension')}, {rest:.3f} together; " if left else "")
            + f"the sum is the score, {float(products.sum()):.3f}",
            sourced(found.products) if explain else "",
        ],
    )


def _most(found: Pair, label: str) -> str:
    """Which heads of the layer write most at this token, in a line."""
    import numpy as np

    shares, names = found.heads.values, found.heads.axes[0].labels
    order = [int(at) for at in np.argsort(-np.nan_to_num(shares, nan=-np.inf), kind="stable")[:3]]
    said = ", ".join(f"{names[at]} {shares[at]:.2f}" for at in order)
    return (
        f"shares of what {label} writes at {found.query.strip()}: {said}{', ...' if len(shares) > len(order) else ''}"
    )


def _heads(found: Pair, trace: Trace, site: int, explain: bool) -> Columns:
    """Every head's share of what the layer writes at this token."""
    from attnx.view.columns import column, columns
    from attnx.view.reporting import sourced

    low = min(0.0, float(found.heads.values.min(initial=0.0)))
    high = max(1e-9, float(found.heads.values.max(initial=0.0)))
    return columns(
        f"{trace.labels[site]}: each head's share of the layer's output at {found.query.strip()}",
        [column("head", found.heads.axes[0].labels), column("share", found.heads.values, bar=(low, high))],
        notes=[sourced(found.heads) if explain else "", *found.heads.notes],
    )


def _projections(around: Projections | None, site: Site, explain: bool) -> Columns:
    """Shapes of X, W_Q, W_K, W_V and W_O, and how the heads are put together."""
    from attnx.view.columns import column, columns

    shapes = _shapes(around, site)
    names = [name for name, shape in shapes.items() if shape is not None]
    made = next((shape for name, shape in shapes.items() if shape is not None and name != "output"), None)
    missing = [name for name, shape in shapes.items() if shape is None]
    said = [f"not found with certainty in the graph: {', '.join(missing)}" if missing else ""]
    if site.heads and site.head_size:
        wide = site.heads * site.head_size
        said.append(
            f"heads: {site.heads} of {site.head_size} side by side, {wide} wide, then W_O adds them up"
            + (" (Vaswani et al. 2017, section 3.2.2)" if explain else "")
        )
    return columns(
        "the matrices around it",
        [
            column("", [*(["X"] if made else []), *(_LETTERS[name] for name in names)], whole=True),
            column(
                "shape",
                [*([f"tokens x {made['rows']}"] if made else []), *(_written(shapes[name]) for name in names)],
                whole=True,
            ),
            column(
                "in the graph",
                [*([made["reads"]] if made else []), *(str((shapes[name] or {})["weight"]) for name in names)],
            ),
        ],
        notes=said,
    )


_LETTERS = {"query": "W_Q", "key": "W_K", "value": "W_V", "output": "W_O"}


def _written(shape: dict[str, Any] | None) -> str:
    shape = shape or {}
    packed = ", W_Q W_K W_V in one" if shape["packed"] else ""
    return f"{shape['rows']} x {shape['columns']}{packed}"


def _shapes(around: Projections | None, site: Site) -> dict[str, dict[str, Any] | None]:
    """Each projection with its rows and columns; None for one that was not found with certainty."""

    def one(made: Projection | None) -> dict[str, Any] | None:
        if made is None:
            return None
        return {
            "weight": made.weight,
            "rows": made.rows,
            "columns": made.columns,
            "packed": made.packed,
            "reads": made.source,
        }

    names = ("query", "key", "value", "output")
    return {name: None if around is None else one(getattr(around, name)) for name in names}
