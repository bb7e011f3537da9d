"""The Textual application: panes and keys. It holds no arithmetic; the desk knows what is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from attnx.errors import AttnxError
from attnx.explore import panes
from attnx.explore.desk import STAGES, Desk
from attnx.view.page import Depth
from attnx.view.save import save

HELP = """arrows, hjkl   layer (up, down) and head (left, right)
n p            next and previous token         / find a token
1 2 3 4 5      weights, unscaled softmax, scores, scaled, masked
m M            the measure that colours the grid, forth and back
v              heatmap or lines                w  pieces or words
x              mute special tokens             e  edit the text
s              save the head's pane (.txt .svg)
? esc          this help, and away with it     q  quit"""


class Explorer(App[None]):
    """`attnx explore`."""

    CSS = """
    Screen { layout: vertical; layers: base over; }
    #left { padding: 0 1; }
    #right { padding: 0 1; width: 1fr; }
    #looks { padding: 0 1; }
    #status { height: 1; background: $panel; padding: 0 1; }
    Input { dock: bottom; display: none; height: 3; }
    Input.shown { display: block; }
    #help { layer: over; display: none; border: round $primary; width: 70; height: 12; padding: 0 1; }
    #help.shown { display: block; }
    """
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1,0,0)"), Binding("down,j", "move(1,0,0)"),
        Binding("left,h", "move(0,-1,0)"), Binding("right,l", "move(0,1,0)"),
        Binding("n,tab", "move(0,0,1)", priority=False), Binding("p,shift+tab", "move(0,0,-1)"),
        *[Binding(str(i + 1), f"stage({i})") for i in range(len(STAGES))],
        Binding("m", "measure(1)"), Binding("M", "measure(-1)"),
        Binding("v", "flip('lines')"), Binding("x", "flip('mute')"), Binding("w", "words"),
        Binding("slash", "ask('find')"), Binding("e", "ask('text')"), Binding("s", "ask('save')"),
        Binding("question_mark", "help"), Binding("escape", "leave", priority=True), Binding("q", "quit"),
    ]  # fmt: skip

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.desk = desk
        self._asked = ""

    def compose(self) -> ComposeResult:
        """Lay out the panes."""
        with Horizontal(id="top"):
            with Vertical(id="left"):
                yield Static(id="grid")
            with Vertical(id="right"):
                yield Static(id="head")
        yield Static(id="looks")
        yield Static(id="status")
        yield Static(Text(HELP), id="help")
        yield Input(id="ask", disabled=True)

    def on_mount(self) -> None:
        """Draw for the first time."""
        self.draw()

    def on_resize(self) -> None:
        """Draw anew for another size."""
        self.draw()

    @property
    def depth(self) -> Depth:
        """How many colours the terminal shows."""
        system = self.console.color_system
        if self.console.no_color or system is None:
            return "none"
        return "true" if system == "truecolor" else "256" if system == "256" else "16"

    def draw(self) -> None:
        """Draw every pane; what cannot be shown is said in its place."""
        width, height = self.size
        low = max(min(height // 3, 12), 4)
        high = max(height - low - 1, 3)
        left = min(panes.grid_width(self.desk) + 2, max(width // 2, 20))
        self.query_one("#top").styles.height = high
        self.query_one("#left").styles.width = left
        self.query_one("#looks", Static).styles.height = low
        self.query_one("#grid", Static).update(panes.grid(self.desk, high, self.depth))
        try:
            self.query_one("#head", Static).update(panes.head(self.desk, high))
            self.query_one("#looks", Static).update(panes.looks(self.desk, low))
        except AttnxError as error:
            self.query_one("#head", Static).update(Text(f"{error.message}\n{error.hint}"))
            self.query_one("#looks", Static).update(Text(""))
        self.query_one("#status", Static).update(panes.status(self.desk))
        self.desk.note = ""

    def action_move(self, layers: int, heads: int, tokens: int) -> None:
        """Move through layers, heads or tokens."""
        self.desk.move(layers, heads, tokens)
        self.draw()

    def action_stage(self, index: int) -> None:
        """Show another stage; words have weights alone."""
        if STAGES[index] != "weights" and self.desk.words:
            self.desk.toggle_words()
        self.desk.stage = STAGES[index]
        self.draw()

    def action_measure(self, step: int) -> None:
        """Colour the grid by another measure."""
        self.desk.measure = (self.desk.measure + step) % len(self.desk.table.measures)
        self.draw()

    def action_flip(self, name: str) -> None:
        """Switch lines or muting on and off."""
        setattr(self.desk, name, not getattr(self.desk, name))
        self.draw()

    def action_words(self) -> None:
        """Between pieces and words."""
        self.desk.toggle_words()
        self.draw()

    def action_ask(self, what: str) -> None:
        """Open the line at the bottom."""
        line = self.query_one("#ask", Input)
        self._asked = what
        line.value = self.desk.text if what == "text" else ""
        line.placeholder = {"find": "a token, or its position", "text": "a text", "save": "FILE.txt, .svg or .html"}[
            what
        ]
        line.disabled = False
        line.add_class("shown")
        line.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Do what was asked; a mistake is said in the status line."""
        self._close()
        try:
            if self._asked == "find":
                self.desk.find(event.value)
            elif self._asked == "text":
                self.desk.open(event.value)
            elif event.value:
                save(Path(event.value), view=panes.head(self.desk, 40), width=100)
                self.desk.note = f"wrote {event.value}"
        except AttnxError as error:
            self.desk.note = error.message
        self.draw()

    def action_help(self) -> None:
        """Show the keys."""
        self.query_one("#help").toggle_class("shown")

    def action_leave(self) -> None:
        """Close the line or the help."""
        self.query_one("#help").remove_class("shown")
        self._close()

    def _close(self) -> None:
        line = self.query_one("#ask", Input)
        line.remove_class("shown")
        line.disabled = True
        self.set_focus(None)
