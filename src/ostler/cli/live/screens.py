"""What is laid over the live view: a job's log, why it is where it is, a question, the keys."""

import codecs
import contextlib
import threading
from concurrent.futures import CancelledError
from typing import Any, ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, RichLog, Static

from ostler.cli.render.words import clean, titled
from ostler.client.errors import HubUnreachable, OstlerError
from ostler.client.http import Hub
from ostler.client.streams import Stream, is_quiet
from ostler.domain import states

Document = dict[str, Any]
TAIL_BYTES = 256 * 1024
MOST_LINES = 20_000
AGAIN_S = 1.0

KEYS = """
 ↑ ↓ PgUp PgDn      move
 Tab                from the machines to the jobs, and back
 Enter              a job's log; a machine's jobs
 l                  the log of a job
 w                  why it is where it is
 c                  cancel a job
 r                  requeue a job
 d                  drain a machine, or open it again
 a                  show what has ended, too
 /                  only what has these words; Esc shows all again
 ?                  this page
 q                  leave
"""


class Log(Screen[None]):
    """The end of a job's log, and what comes. A hub that restarts is waited for."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,l", "app.pop_screen", "Back"),
        Binding("f", "follow", "Follow"),
        Binding("home,g", "top", "Top"),
        Binding("end,G", "end", "End"),
    ]

    def __init__(self, hub: Hub, job: Document) -> None:
        super().__init__()
        self._hub = hub
        self._job = job
        self._left = threading.Event()
        self._stream: Stream | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield RichLog(id="log", max_lines=MOST_LINES, wrap=True, highlight=False, markup=False)
        yield Footer()

    def on_mount(self) -> None:
        waits = self._job["state"] == states.PENDING
        self._entitle("waits for a place, and has printed nothing yet" if waits else "")
        self.query_one("#log", RichLog).focus()
        threading.Thread(target=self._read, name="top_log", daemon=True).start()

    def on_unmount(self) -> None:
        self._left.set()
        if self._stream is not None:
            self._stream.close()

    def action_follow(self) -> None:
        log = self.query_one("#log", RichLog)
        log.auto_scroll = not log.auto_scroll
        self._entitle("" if log.auto_scroll else "stands still")

    def action_top(self) -> None:
        log = self.query_one("#log", RichLog)
        log.auto_scroll = False
        log.scroll_home(animate=False)

    def action_end(self) -> None:
        log = self.query_one("#log", RichLog)
        log.auto_scroll = True
        log.scroll_end(animate=False)

    def _entitle(self, what: str) -> None:
        line = Text(f" {titled(self._job)}", "bold").append(f"  {what}" if what else "", "yellow")
        self.query_one("#title", Static).update(line)

    def _read(self) -> None:
        """By a thread of its own. After a break the end of the log is read anew."""
        while not self._left.is_set():
            try:
                self._stream = self._hub.open_log(self._job["id"], True, 0, None, TAIL_BYTES)
                self._tell(self._begin)
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                rest = ""
                for chunk in self._stream.chunks():
                    *lines, rest = (rest + decoder.decode(chunk)).split("\n")
                    self._tell(self._add, lines)
                self._tell(self._add, [rest] if rest else [])
                if self._hub.job(self._job["id"])["state"] in states.TERMINAL:
                    self._tell(self._entitle, "has ended")
                    return
            except HubUnreachable as error:
                if not is_quiet(error):
                    self._tell(self._entitle, "the hub is away; its log goes on when it is back")
            except OstlerError as error:
                self._tell(self._add, [f"ostler: {error}"])
                return
            self._left.wait(AGAIN_S)

    def _tell(self, act: Any, *given: Any) -> None:
        """By the view's own thread, unless it has gone meanwhile."""

        def tell() -> None:
            with contextlib.suppress(NoMatches):
                act(*given)

        with contextlib.suppress(RuntimeError, CancelledError):  # the whole view has gone
            self.app.call_from_thread(tell)

    def _begin(self) -> None:
        self.query_one("#log", RichLog).clear()

    def _add(self, lines: list[str]) -> None:
        log = self.query_one("#log", RichLog)
        if lines and log.auto_scroll:
            self._entitle("")
        for line in lines:
            log.write(Text(clean(line.rpartition("\r")[2] or line.rstrip("\r"))))


class Told(ModalScreen[None]):
    """Something to read."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark,w", "app.pop_screen", "Back")]

    def __init__(self, title: str, told: RenderableType) -> None:
        super().__init__()
        self._title = title
        self._told = told

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Text(self._title, "bold"))
            with VerticalScroll():
                yield Static(self._told, id="told")
            yield Static(Text("Esc: back", "bright_black"))


class Asked(ModalScreen[bool]):
    """A question before something is done."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,q", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="box question"):
            yield Static(Text(clean(self._question)), id="question")
            yield Static(Text("y: yes   n: no", "bright_black"))
