"""`attnx mask TEXT`: who may look at whom, read off the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnx.cli.options import SENSES, ExplainOption, ForceOption, LayerOption, SaveOption, SiteOption, starts
from attnx.cli.start import Start
from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.measure.visibility import Visibility
    from attnx.records import Trace
    from attnx.view.columns import Columns


MASKS = 3
"""How many masks are drawn."""


@starts("generate", *SENSES, "json")
def mask(
    run: Start,
    layer: LayerOption = None,
    site: SiteOption = None,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Show who may look at whom, read off what each softmax was given: the pattern, what hides, how much is hidden.

    Layers with the same mask are shown once, and drawn where they hide anything. --explain says what counts as hidden.

    Examples:
        attnx mask "The animal slept because it was tired."
        attnx mask "The cat sat on the mat." -m tiny-gpt
        attnx mask "The cat sat on the mat." -m tiny-gpt --layer 0 --json
    """
    from attnx.cli import output, saving
    from attnx.study.mask_map import masks
    from attnx.study.request import parse_layers
    from attnx.view.reporting import base, site_object

    saving.check(save, force=force)
    layers = None if layer is None else parse_layers(layer)
    trace, found, doubts = masks(run.opened, run.prompt, layers, site)
    output.notes((*trace.notes, *doubts))
    if run.output.json or save is not None:
        from attnx.view.json import document

        body: dict[str, Any] = {
            **base(trace),
            "masks": [site_object(trace, at) | _object(one) for at, one in enumerate(found)],
            "notes": [*trace.notes, *doubts],
        }
        whole = document("attnx/mask", body)
        views = _views(trace, found, explain, 0)
        numbers = {} if save is None else _numbers(trace, found)
        saving.give(views, numbers, whole, json=run.output.json, path=save, force=force)
        return
    output.show(*_views(trace, found, explain, output.lines_of((*trace.notes, *doubts))))


def _numbers(trace: Trace, found: list[Visibility]) -> dict[str, list[Any]]:
    """A row for each cell of each mask; layers may be over different tokens."""
    import numpy as np

    names = ("layer", "layer_label", "query", "query_label", "key", "key_label", "visible")
    out: dict[str, list[Any]] = {name: [] for name in names}
    for at, one in enumerate(found):
        queries, keys = (axis.labels for axis in one.matrix.axes)
        rows, columns = (place.ravel().tolist() for place in np.indices(one.matrix.values.shape))
        values: tuple[list[Any], ...] = (
            [at] * len(rows), [trace.labels[at]] * len(rows), rows, [queries[row] for row in rows], columns,
            [keys[column] for column in columns], one.matrix.values.ravel().tolist(),
        )  # fmt: skip
        for name, part in zip(names, values, strict=True):
            out[name] += part
    return out


def _views(trace: Trace, found: list[Visibility], explain: bool, said: int) -> list[Any]:
    """What is shown: each mask in a line, then those that hide anything, drawn; `said` lines stand on stderr."""
    from attnx.view.page import line
    from attnx.view.reporting import heading, sourced
    from attnx.view.screen import explanation, screen
    from attnx.view.visible import visible

    groups = _groups(found)
    shown: list[Any] = [line(heading(trace)), *(line(_said(trace, found, group), "bold") for group in groups[:MASKS])]
    if len(groups) > 1:
        shown.append(_table(trace, found, groups))
    else:
        shown += [line(note, "dim") for note in found[groups[0][0]].notes]
    drawn = [group for group in groups if found[group[0]].hidden]
    for group in drawn[:MASKS]:
        title = [line(f"{_span(trace, group)}: {found[group[0]].said}", "bold")] if len(groups) > 1 else []
        shown += ["", *title, visible(found[group[0]].matrix)]
    if len(drawn) > MASKS:
        shown += ["", f"{len(drawn) - MASKS} more masks: choose one with --layer"]
    return [screen(*shown, explanation(sourced(found[0].matrix)), said=said)] if explain else shown


def _said(trace: Trace, found: list[Visibility], group: list[int]) -> str:
    """A mask in a line: which layers, the pattern, what is hidden and by what."""
    one = found[group[0]]
    hides = f"{one.hidden} of {one.cells} cells hidden by {_by(one.stand_in, one.hidden)}" if one.hidden else ""
    padding = f"{len(one.padding)} padding keys" if one.padding else ""
    rest = "; ".join(filter(None, (hides or "nothing is hidden", padding)))
    return f"{_span(trace, group)}: {one.said}; {rest}"


def _groups(found: list[Visibility]) -> list[list[int]]:
    """Sites whose masks are the same, cell by cell, in order."""
    import numpy as np

    out: list[list[int]] = []
    for at, one in enumerate(found):
        same = next(
            (
                group
                for group in out
                if np.array_equal(found[group[0]].matrix.values, one.matrix.values)
                and found[group[0]].matrix.axes == one.matrix.axes
                and (found[group[0]].statement, found[group[0]].notes) == (one.statement, one.notes)
            ),
            None,
        )
        if same is None:
            out.append([at])
        else:
            same.append(at)
    return out


def _span(trace: Trace, group: list[int]) -> str:
    """The labels of a group: "L0 to L5", "L0, L2"."""
    labels = [trace.labels[at] for at in group]
    if len(group) > 2 and group == list(range(group[0], group[-1] + 1)):
        return f"{labels[0]} to {labels[-1]}"
    return ", ".join(labels)


def _table(trace: Trace, found: list[Visibility], groups: list[list[int]]) -> Columns:
    """A line a mask: the pattern, what is hidden, and by what."""
    from attnx.view.columns import column, columns

    kinds = [found[group[0]] for group in groups]
    return columns(
        "who may look at whom",
        [
            column("layers", [_span(trace, group) for group in groups]),
            column("pattern", [one.said for one in kinds], whole=True),
            column("hidden cells", [f"{one.hidden} of {one.cells}" for one in kinds], whole=True),
            column("hidden by", [_by(one.stand_in, one.hidden) for one in kinds], whole=True),
            column("padding", [f"{counted(len(one.padding), 'key')}" if one.padding else "none" for one in kinds]),
        ],
        notes=list(dict.fromkeys(note for one in kinds for note in one.notes)),
    )


def _by(stand_in: float | None, hidden: int) -> str:
    if not hidden:
        return "-"
    return "not known" if stand_in is None else f"{stand_in:g}"


def _object(one: Visibility) -> dict[str, Any]:
    import math

    infinite = one.stand_in is not None and math.isinf(one.stand_in)
    return {
        "pattern": one.pattern,
        "window": one.window,
        "prefix": one.prefix,
        "ahead": one.ahead,
        "padding": one.padding,
        "hidden": one.hidden,
        "cells": one.cells,
        "empty_rows": one.empty_rows,
        "stand_in": "-inf" if infinite else one.stand_in,
        "heads_differ": one.heads_differ,
        "statement": one.statement,
        "matrix": one.matrix,
        "notes": one.notes,
    }
