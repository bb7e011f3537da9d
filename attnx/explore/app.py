"""The Textual application: panes and keys. It does no arithmetic; the desk keeps what is being looked at.

A key takes effect at once with what is in memory. If it needs a run of the model (a layer not seen before, another
text), the model runs in a thread, and the result is shown when it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from rich.console import Console, RenderableType
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Resize
from textual.widgets import Input, Static

from attnx.errors import INTERRUPTED, AttnxError
from attnx.explore import panes
from attnx.explore.desk import STAGES, VIEWS, Desk
from attnx.explore.frame import CSS, HELP
from attnx.explore.keyboard import ignore_broken_bytes
from attnx.explore.pane import Pane
from attnx.explore.saving import save_view
from attnx.view.page import Depth


class Explorer(App[None]):
    """The explorer: a model's heads, one keystroke apart."""

    CSS = CSS
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(keys, action, priority=True)
        for keys, action in (
            ("up,k", "move(-1,0,0)"), ("down,j", "move(1,0,0)"), ("left,h", "move(0,-1,0)"), ("right,l", "move(0,1,0)"),
            ("n,tab", "move(0,0,1)"), ("p,shift+tab", "move(0,0,-1)"),
            *((str(i + 1), f"stage({i})") for i in range(len(STAGES))),
            ("m", "measure(1)"), ("M", "measure(-1)"), ("a", "ablate"), ("v", "view"), ("c", "scale"),
            ("x", "flip('mute')"), ("z", "flip('sinks')"), ("w", "words"),
            ("slash", "ask('find')"), ("e", "ask('text')"), ("s", "ask('save')"),
            ("question_mark", "help"), ("escape", "leave"), ("q", "quit"),
            ("ctrl+c,ctrl+q", "stop"),
        )
    ]  # fmt: skip

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While something is typed, letters are letters."""
        return action in ("leave", "stop") or not self.query_one("#ask").display

    def __init__(self, desk: Desk, worded: Callable[[str], str] = str) -> None:
        # With 16 colours, use the terminal's own: Textual's nearest match would turn yellow into red.
        super().__init__(ansi_color=Console().color_system == "standard")
        ignore_broken_bytes(self.driver_class)
        self.desk, self._worded = desk, worded
        self._asked = ""
        self._extent: tuple[int, int] | None = None  # while the event is handled, `size` still has the old value
        self._at_work = False
        self._failed: dict[int, AttnxError] = {}
        self._waiting: list[Callable[[], None]] = []
        self.crash: Exception | None = None
        """What ended the explorer in a run of the model, and is no error of ours; to be raised once it is closed."""

    def panic(self, *renderables: RenderableType) -> None:
        """A crash in one of Textual's own threads (that of the keyboard) ends with an exit code too."""
        super().panic(*renderables)
        self._return_code = self._return_code or 1

    def compose(self) -> ComposeResult:
        """Lay out the panes."""
        with Horizontal(id="top"):
            yield Pane(id="grid")
            yield Pane(id="head")
        yield Pane(id="looks")
        yield Pane(id="status")
        yield Static(Text(HELP), id="help")
        yield Input(id="ask", disabled=True)

    def on_mount(self) -> None:
        """Treat a termination signal as quitting, so that the terminal is restored; then draw."""
        with contextlib.suppress(NotImplementedError, RuntimeError):  # Windows; not the main thread
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, partial(self.exit, return_code=128 + number))
        self.screen.set_class(self.depth in ("16", "none"), "few")
        self._place()

    def action_stop(self) -> None:
        """Exit like an interrupted program."""
        self.exit(return_code=INTERRUPTED)

    def on_resize(self, event: Resize) -> None:
        """Update the layout for a new size."""
        self._extent = event.size
        self._place()

    def on_pane_resized(self) -> None:
        """Redraw for a new size."""
        self.draw()

    @property
    def busy(self) -> bool:
        """Whether the model is running."""
        return self._at_work

    @property
    def depth(self) -> Depth:
        """How many colours the terminal shows."""
        system = self.console.color_system
        if self.console.no_color or system is None:
            return "none"
        return "true" if system == "truecolor" else "256" if system == "256" else "16"

    def _place(self) -> None:
        """Give the panes their sizes, then draw."""
        width, height = self._extent or self.size
        self.query_one("#looks").styles.height = max(min(height // 3, 12), 4)
        self.query_one("#grid").styles.width = panes.grid_width(self.desk, max(width * 2 // 5, 20), height)
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Draw the changed lines of every pane; a message replaces what cannot be shown."""
        self._catch_up()
        if self.desk.ready:
            self.desk.move()  # another site may have fewer queries
        grid, head, looks, status = (self.query_one(f"#{name}", Pane) for name in ("grid", "head", "looks", "status"))
        grid.show(panes.grid(self.desk, grid.size.width, grid.size.height, self.depth))
        status.show([panes.status(self.desk, status.size.width)])
        self.desk.note = ""
        try:
            if self.desk.site in self._failed:
                raise self._failed[self.desk.site]
            if self.desk.ready:
                head.draw(self.console, [panes.head(self.desk, head.size.height)])
                looks.draw(self.console, [panes.looks(self.desk, looks.size.height)])
            else:
                head.draw(self.console, panes.text_lines(f"running the model for {self.desk.place} ..."))
                looks.show([])
        except AttnxError as error:
            head.draw(self.console, panes.text_lines(f"{self._worded(error.message)}\n{self._worded(error.hint)}"))
            looks.show([])
        self._fetch()

    def _fetch(self) -> None:
        """Read what is being looked at if it is not in memory; otherwise what is one step away."""
        reader = self.desk.reader
        site = self.desk.site if not self.desk.ready else reader.near(self.desk.site)
        if site is None or site in self._failed:
            return

        def done(error: AttnxError | None) -> None:
            if error is not None and reader is self.desk.reader:
                self._failed[site] = error
                self._waiting.clear()
            self.draw()

        self._beside(lambda: reader.read(site), done)

    def _beside(self, work: Callable[[], None], done: Callable[[AttnxError | None], None]) -> None:
        """Do work in a thread, one job at a time, then call `done`, which also draws what changed in between."""
        if self._at_work:
            return
        self._at_work = True

        def ended(error: AttnxError | None) -> None:
            self._at_work = False
            done(error)

        def run() -> None:
            error = None
            try:
                work()
            except AttnxError as found:
                error = found
            except Exception as found:
                self.crash = found
                if self.is_running:
                    self.call_from_thread(self.exit, None, 1)
                return
            if self.is_running:
                self.call_from_thread(ended, error)

        self.run_worker(run, thread=True)

    def action_move(self, layers: int, heads: int, tokens: int) -> None:
        """Move through layers, heads or tokens."""
        self.desk.move(layers, heads, tokens)
        self.draw()

    def action_stage(self, index: int) -> None:
        """Show another stage."""
        self._when_ready(lambda: self.desk.show(STAGES[index]))

    def action_measure(self, step: int) -> None:
        """Colour the grid by another measure."""
        self.desk.measure = (self.desk.measure + step) % len(self.desk.table.measures)
        self.draw()

    def action_ablate(self) -> None:
        """Ablate every head in a thread, and colour the grid by how far the model's answer moves."""
        reader = self.desk.reader
        found: list[Any] = []
        if self._at_work:
            self.desk.note = "the model is still running: once more in a moment"
            self.draw()
            return

        def done(error: AttnxError | None) -> None:
            if error is not None:
                self.desk.note = self._worded(error.message)
            elif reader is self.desk.reader:
                measure, notes = found[0]
                self.desk.add(measure)
                self.desk.note = "; ".join(map(self._worded, notes))
            self.draw()

        self.desk.note = "ablating every head ..."
        self._beside(lambda: found.append(self.desk.effects()), done)
        self.draw()

    def action_view(self) -> None:
        """Switch between a heatmap, lines and numbers."""
        self.desk.view = VIEWS[(VIEWS.index(self.desk.view) + 1) % len(VIEWS)]
        self.draw()

    def action_flip(self, name: str) -> None:
        """Toggle muting of special tokens, or leaving out sinks."""
        setattr(self.desk, name, not getattr(self.desk, name))
        self.draw()

    def action_scale(self) -> None:
        """Switch to another colour scale."""
        self.desk.next_scale()
        self.draw()

    def action_words(self) -> None:
        """Switch between pieces and words."""
        self._when_ready(self.desk.toggle_words)

    def _when_ready(self, change: Callable[[], None]) -> None:
        """Do what needs the matrices, now or once they are available; the status line shows errors."""
        self._waiting.append(change)
        self.draw()

    def _catch_up(self) -> None:
        """Do what waited for the matrices."""
        while self._waiting and self.desk.ready:
            try:
                self._waiting.pop(0)()
            except AttnxError as error:
                self.desk.note = self._worded(error.message)

    def action_ask(self, what: str) -> None:
        """Open the line at the bottom."""
        line = self.query_one("#ask", Input)
        self._asked = what
        line.value = self.desk.text if what == "text" else ""
        line.placeholder = {
            "find": "a token, or its position",
            "text": "a text",
            "save": "FILE.txt .svg .html .png .pdf .csv .npz .parquet",
        }[what]
        line.disabled = False
        line.display = True
        self.set_focus(line)  # at once: what is typed next belongs to it

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Carry out a command; the status line shows errors."""
        self._close()
        if self._asked == "text":
            self._rerun(event.value)
        elif self._asked == "find":
            self._when_ready(lambda: self.desk.find(event.value))
        elif event.value:
            self._when_ready(lambda: save_view(self.desk, event.value))

    def _rerun(self, text: str) -> None:
        """Run the model on another text in a thread; the old text stays until the new one is ready."""
        if self._at_work:
            self.desk.note = "the model is still running: once more in a moment"
            self.draw()
            return
        found: list[Any] = []

        def done(error: AttnxError | None) -> None:
            if error is None:
                self._failed.clear()
                self._waiting.clear()
                self.desk.open(text, found[0])
            else:
                self.desk.note = self._worded(error.message)
            self._place()

        self.desk.note = "running the model ..."
        self._beside(lambda: found.append(self.desk.prepare(text)), done)
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
        line.display = False
        line.disabled = True
        self.set_focus(None)
