"""What to show of a trace: layers, heads, the query token, the stage, the view. Checked before a model runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnx.errors import UsageError
from attnx.measure.combine import How
from attnx.records import QUANTITIES, SHOWN, Quantity, Site, Stage
from attnx.wording import Wording

ScaleKind = Literal["linear", "log", "row"]
SCALES = ("linear", "log", "row")
VIEWS = ("overview", "grid", "heatmap", "table", "row", "lines", "ranking")
"""Ways to show attention."""
OVER = ("heads", "layers", "all")
"""What a mean or maximum can be taken over."""
NEEDS: dict[str, tuple[Quantity, ...]] = {
    "scores": ("query", "key", "scores"),
    "scaled": ("query", "key", "scores", "scaled"),
    "capped": ("query", "key", "scores", "scaled", "capped"),
    "bias": ("query", "key", "scores", "scaled", "capped", "masked", "weights"),
    "masked": ("masked", "weights"),
    "weights": ("masked", "weights"),
}
"""Stage -> the quantities traced for it: itself, and those it is checked against."""


@dataclass(frozen=True, slots=True)
class Head:
    """A head as the user names it."""

    layer: int | None
    """None: that head in every displayed layer."""
    head: int


@dataclass(frozen=True, slots=True)
class Request:
    """What to show."""

    layers: tuple[int, ...] | None = None
    """None: all."""
    heads: tuple[Head, ...] = ()
    """Empty: all."""
    query: str | None = None
    site: str | None = None
    stage: Stage = "weights"
    top: int | None = None
    words: bool = False
    mute: bool = False
    how: How | None = None
    over: str | None = None
    """"heads", "layers" or "all", if `how` is not None."""
    view: str = "overview"
    scale: ScaleKind = "linear"
    """How values are mapped to colours."""

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """What must be traced."""
        return NEEDS[self.stage]

    @property
    def traced_layers(self) -> tuple[int, ...] | None:
        """The layers that must be traced; None for all."""
        named = {head.layer for head in self.heads}
        if self.heads and None not in named:
            return tuple(sorted(layer for layer in named if layer is not None))
        return self.layers

    def wants_row(self, sites: Sequence[Site]) -> bool:
        """Whether only the query's own row is needed: not if pieces are merged or other rows are shown with it."""
        shown = [s.heads or 1 for s in sites if self.layers is None or s.layer in self.layers]
        many = self.view == "table" and not self.heads and self.how is None and sum(shown) > 1
        return self.query is not None and not self.words and (self.view in ("row", "ranking") or many)

    @property
    def reduced(self) -> tuple[str, ...]:
        """What is reduced and gathered in the graph if `combines_heads`."""
        return ("total", "mean" if self.how == "mean" else "most", "most_masked", "masked", "weights")

    @property
    def combines_heads(self) -> bool:
        """Whether only the mean or the largest over all heads of each site's weights is shown."""
        as_they_are = self.stage == "weights" and not self.words and not self.mute
        return self.how is not None and self.over == "heads" and not self.heads and as_they_are

    @property
    def selects(self) -> bool:
        """Whether anything narrower than the whole model is requested."""
        return bool(self.heads or self.query is not None or self.layers is not None or self.how)


def ask(
    *,
    layer: str | None = None,
    heads: Sequence[str] = (),
    query: str | None = None,
    site: str | None = None,
    stage: str = "weights",
    top: int | None = None,
    words: bool = False,
    mute: bool = False,
    mean: str | None = None,
    largest: str | None = None,
    view: str | None = None,
    scale: str = "linear",
) -> Request:
    """Parse the options of a command.

    Raises:
        UsageError: An option that cannot be parsed, or two that exclude each other.
    """
    if stage not in SHOWN:
        raise UsageError(f"there is no stage {stage!r}", f"Choose from {', '.join(SHOWN)}.")
    if scale not in SCALES:
        raise UsageError(f"there is no colour scale {scale!r}", f"Choose from {', '.join(SCALES)}.")
    if words and stage != "weights":
        raise UsageError(
            Wording("<words> merges weights, not {stage}", stage=stage),
            Wording("Scores of pieces have no sum that means much; leave out <words>."),
        )
    if mean is not None and largest is not None:
        raise UsageError(Wording("<mean> and <largest> cannot be given together"), "Give one of them.")
    over = mean if mean is not None else largest
    if over is not None and over not in OVER:
        argument = "mean" if mean is not None else "largest"
        taken = Wording(f"<{argument}={{over}}>: it is taken over {', '.join(OVER)}", over=over)
        raise UsageError(taken, Wording(f"For example: <{argument}='heads'>."))
    request = Request(
        layers=None if layer is None else parse_layers(layer),
        heads=tuple(parse_head(text) for text in heads),
        query=query,
        site=site,
        stage=stage,
        top=top,
        words=words,
        mute=mute,
        how=None if over is None else "mean" if mean is not None else "max",
        over=over,
        scale=scale,  # type: ignore[arg-type]
    )
    agree(request.heads, request.layers)
    return _with_view(request, view)


def agree(heads: Sequence[Head], layers: Sequence[int] | None) -> None:
    """Check heads that name their layer against the requested layers.

    Raises:
        UsageError: A head of another layer: one of the two requests would be ignored.
    """
    for head in heads:
        if layers is not None and head.layer is not None and head.layer not in layers:
            raise UsageError(
                Wording(
                    "<heads=[{head}]> is a head of layer {layer}, which <layers> leaves out",
                    head=f"{head.layer}.{head.head}",
                    layer=head.layer,
                ),
                "Leave one of them out.",
            )


def parse_quantities(text: str | None) -> tuple[Quantity, ...]:
    """Read "weights,scores": quantities in the order in which they are computed; None for all.

    Raises:
        UsageError: A quantity that does not exist.
    """
    if text is None:
        return QUANTITIES
    wanted = [name.strip() for name in text.split(",")]
    for name in wanted:
        if name not in QUANTITIES:
            raise UsageError(f"there is no array {name!r}", f"Choose from {', '.join(QUANTITIES)}.")
    return tuple(quantity for quantity in QUANTITIES if quantity in wanted)


def parse_layers(text: str) -> tuple[int, ...]:
    """Read "5", "2-4", "0,5" or "0,2-4": numbers in order, each once.

    Raises:
        UsageError: Anything else.
    """
    out: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*L?(\d{1,6})(?:\s*-\s*L?(\d{1,6}))?\s*", part, re.ASCII | re.IGNORECASE)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise UsageError(
                Wording("<layers={text!r}> is not a layer", text=text),
                "Give 5, a range 2-4, or a list 0,5. Layers count from 0.",
            )
        out |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(out))


def parse_head(text: str, argument: str = "heads") -> Head:
    """Read "11", "5.11", "L5H11" or "L5 H11", the value of an argument.

    Raises:
        UsageError: Anything else.
    """
    match = re.fullmatch(r"\s*(?:L?(\d{1,6})(?:\.|\s*(?=H)))?H?(\d{1,6})\s*", text, re.ASCII | re.IGNORECASE)
    if match is None:
        said = Wording(f"<{argument}={{text!r}}> is not a head", text=text)
        raise UsageError(said, "Give H or L.H, for example 5.11. Both count from 0.")
    return Head(None if match[1] is None else int(match[1]), int(match[2]))


def _with_view(request: Request, view: str | None) -> Request:
    """Fill in the view that suits the request, or check that the named one does."""
    from dataclasses import replace

    if view is None:
        return replace(request, view=_suits(request))
    if view not in VIEWS:
        raise UsageError(f"there is no view {view!r}", f"Choose from {', '.join(VIEWS)}.")
    if view == "row" and request.query is None:
        raise UsageError(Wording("<view='row'> shows where one token looks"), Wording("Choose a token: <query='it'>."))
    if view == "ranking" and request.query is None:
        raise UsageError(
            Wording("<view='ranking'> ranks the heads of one token"), Wording("Choose a token: <query='it'>.")
        )
    if view == "overview" and (request.stage != "weights" or request.how or request.query is not None or request.heads):
        raise UsageError(
            Wording("<view='overview'> is of the weights of all heads"),
            Wording("Leave out <stage>, <query>, <heads>, <mean> and <largest>."),
        )
    if view == "grid" and (request.heads or request.how or request.query is not None):
        raise UsageError(
            Wording("<view='grid'> shows every head of a layer"),
            Wording("Leave out <heads>, <query>, <mean> and <largest>."),
        )
    if view in ("heatmap", "lines") and not (request.heads or request.how or request.layers is not None):
        raise UsageError(
            Wording("<view={view}> shows single heads", view=view),
            Wording("Choose one: <heads=['5.11']>, or a layer: <layers=[5]>."),
        )
    return replace(request, view=view)


def _suits(request: Request) -> str:
    if request.how or request.heads:
        return "table" if request.query is None else "row"
    if request.query is not None:
        return "ranking" if request.layers is None else "table"
    if request.layers is not None or request.stage != "weights":
        return "grid"
    return "overview"
