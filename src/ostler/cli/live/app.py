"""The live view: machines above, jobs below, and what may be done to them."""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, ClassVar

from rich.terminal_theme import TerminalTheme
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, Static

from ostler.cli.live import rows
from ostler.cli.live.screens import KEYS, Asked, Log, Told
from ostler.cli.live.seen import News, Seen
from ostler.cli.render.parts import state_text
from ostler.cli.render.words import clean, since, span, titled
from ostler.client.errors import HubUnreachable, OstlerError
from ostler.client.http import Hub
from ostler.domain import states

Document = dict[str, Any]
COLOURS = TerminalTheme(
    (30, 30, 30),
    (224, 224, 224),
    [
        *((0, 0, 0), (240, 82, 82), (106, 190, 106), (230, 180, 60)),
        *((110, 160, 250), (200, 120, 220), (80, 200, 220), (224, 224, 224)),
    ],
    [
        *((150, 150, 150), (255, 110, 110), (130, 220, 130), (255, 210, 90)),
        *((140, 185, 255), (225, 150, 240), (110, 225, 240), (255, 255, 255)),
    ],
)
"""What tables say in a terminal's own colours, here on this ground: the quiet ones are to be read, too."""


class Top(App[None]):
    ENABLE_COMMAND_PALETTE = False
    TITLE = "Ostler"
    CSS = """
    Screen { layers: base over; }
    #head, #totals, #models, #title { height: 1; }
    #head, #title { background: $primary-background; }
    #away { height: 1; background: $error; color: $text; display: none; }
    #away.shown { display: block; }
    #models { display: none; }
    #models.shown { display: block; }
    #machines { height: auto; max-height: 40%; min-height: 3; }
    #jobs { height: 1fr; }
    DataTable { overflow-x: hidden; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #filter.shown { display: block; }
    DataTable > .datatable--header { text-style: bold; }
    Log #log { height: 1fr; }
    Told, Asked { align: center middle; }
    .box { width: 90%; max-width: 110; height: auto; max-height: 90%; padding: 0 1; }
    .box { border: round $primary; background: $surface; }
    .box VerticalScroll { height: auto; max-height: 100%; }
    .question { max-width: 70; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log", "Log"),
        Binding("w", "why", "Why"),
        Binding("c", "cancel", "Cancel"),
        Binding("r", "requeue", "Requeue"),
        Binding("d", "drain", "Drain"),
        Binding("a", "ended", "Ended"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("escape", "all", "All", show=False),
        Binding("tab", "app.focus_next", "Next", show=False),
    ]

    def __init__(self, hub: Hub, filter: str = "", every_s: float = 1.0) -> None:
        super().__init__()
        self.ansi_theme_dark = COLOURS
        self._hub = hub
        self._filter = filter
        self._every_s = every_s
        self._seen: Seen | None = None
        self._away_since: float | None = None
        self._refusal = ""
        """What a hub that is there has said instead of an answer."""
        self._news: News | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="away")
        yield Static(id="totals")
        yield DataTable(id="machines", cursor_type="row", zebra_stripes=False)
        yield Static(id="models")
        yield Input(self._filter, placeholder="only what has these words; Enter, or Esc for all", id="filter")
        yield DataTable(id="jobs", cursor_type="row", zebra_stripes=False)
        yield Footer()

    def on_mount(self) -> None:
        self._jobs.focus()
        self._news = News(self._hub, self._from_thread(self._saw), self._from_thread(self._lost), self._every_s)
        self.set_interval(1.0, self._tick)

    def on_unmount(self) -> None:
        if self._news is not None:
            self._news.close()

    def _from_thread(self, act: Callable[[Any], None]) -> Callable[[Any], None]:
        def tell(given: Any) -> None:
            with contextlib.suppress(RuntimeError, CancelledError):  # the view has gone meanwhile
                if self.is_running:
                    self.call_from_thread(act, given)

        return tell

    @property
    def _is_there(self) -> bool:
        """Not any more while it is being put away: its parts go before its clock does."""
        return bool(self.screen_stack) and bool(self.screen_stack[0].query("#away"))

    @property
    def _machines(self) -> "DataTable[Text]":
        return self.screen_stack[0].query_one("#machines", DataTable)

    @property
    def _jobs(self) -> "DataTable[Text]":
        return self.screen_stack[0].query_one("#jobs", DataTable)

    # What there is to see

    def _saw(self, seen: Seen) -> None:
        self._seen, self._away_since = seen, None
        self._show()

    def _lost(self, error: OstlerError) -> None:
        self._away_since = self._away_since or time.monotonic()
        self._refusal = "" if isinstance(error, HubUnreachable) else clean(str(error))
        self._tick()

    def on_resize(self, event: Resize) -> None:
        self._show()

    def _tick(self) -> None:
        """Once a second: the times go on by themselves."""
        if not self._is_there:
            return
        away = self.screen_stack[0].query_one("#away", Static)
        away.set_class(self._away_since is not None, "shown")
        if self._away_since is not None:
            gone = span(time.monotonic() - self._away_since)
            what = f"refused for {gone}: {self._refusal}" if self._refusal else f"no hub for {gone}; trying again"
            away.update(Text(f" {what}. Below is what was known last. {self._hub.url}"))
        self._head()

    def _head(self) -> None:
        if self._seen is None:
            return
        totals = self._seen.totals
        about = totals.get("hub") or {}
        line = Text(f" Ostler {about.get('version', '')} ", "bold").append(clean(self._hub.address), "default")
        line.append(f"  up {since(about.get('started_at'))}", "default")
        shown = [state for state in states.STATES if (totals.get("jobs") or {}).get(state)]
        for state in shown:
            line += Text("  ") + state_text(state) + Text(f" {totals['jobs'][state]}")
        if self._filter:
            line.append(f"  /{self._filter}", "bold yellow")
        self.screen_stack[0].query_one("#head", Static).update(line)
        self.screen_stack[0].query_one("#totals", Static).update(rows.totals(totals, self.size.width))

    def _show(self) -> None:
        if self._seen is None or not self._is_there:
            return
        self._tick()
        width, names = self.size.width, self._seen.names()
        machines = {one["id"]: rows.machine_row(one, names, width) for one in self._shown_workers()}
        _fill(self._machines, rows.machine_columns(width), machines)
        _fill(self._jobs, rows.job_columns(width), rows.job_rows(self._shown_jobs(), width))
        models = self.screen_stack[0].query_one("#models", Static)
        models.set_class(bool(self._seen.models), "shown")
        models.update(Text(" models ", "bold") + rows.models_line(self._seen.models))

    def _shown_workers(self) -> list[Document]:
        """All of them where the filter speaks of jobs only."""
        assert self._seen is not None
        if self._filter.startswith(rows.ON):
            return self._seen.workers
        return [one for one in self._seen.workers if rows.holds(self._filter, one)] or self._seen.workers

    def _shown_jobs(self) -> list[Document]:
        assert self._seen is not None
        if self._filter.startswith(rows.ON):
            there = rows.jobs_on(self._seen.workers, self._filter.removeprefix(rows.ON))
            return [job for job in self._seen.jobs if job["id"] in there]
        return [job for job in self._seen.jobs if rows.holds(self._filter, job)]

    # What is chosen

    def _job(self) -> Document | None:
        chosen = _chosen(self._jobs)
        return next((job for job in self._seen.jobs if job["id"] == chosen), None) if self._seen else None

    def _worker(self) -> Document | None:
        chosen = _chosen(self._machines)
        return next((one for one in self._seen.workers if one["id"] == chosen), None) if self._seen else None

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "jobs":
            self.action_log()
        elif (worker := self._worker()) is not None:
            self._set_filter(rows.ON + worker["id"])
            self._jobs.focus()

    # What is done

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What belongs to the tables is for them alone: not while a log or a question is above."""
        of_tables = ("log", "why", "cancel", "requeue", "drain", "ended", "filter", "keys", "all")
        return not (action in of_tables and len(self.screen_stack) > 1)

    def action_log(self) -> None:
        job = self._job()
        if job is not None and job.get("counts"):
            self.notify(f"each task has its own log: ostler logs {job['id']}.0", title="an array")
        elif job is not None:
            self.push_screen(Log(self._hub, job))

    def action_why(self) -> None:
        if (job := self._job()) is None:
            return
        from ostler.cli.render.why import why_screen

        names = self._seen.names() if self._seen else {}

        def show(found: Document) -> None:
            self.push_screen(Told("Why", why_screen(titled(job), found, names=names)))

        self._do(lambda: self._hub.why(job["id"]), show)

    def action_cancel(self) -> None:
        if (job := self._job()) is not None and job["state"] not in states.TERMINAL:
            self._ask(
                f"Cancel {titled(job)}, which is {job['state']}?", lambda: self._hub.cancel(job["id"]), "cancelled"
            )

    def action_requeue(self) -> None:
        if (job := self._job()) is not None:
            question = f"Run {titled(job)} again? What it has done so far is thrown away."
            self._ask(question, lambda: self._hub.requeue(job["id"]), "requeued")

    def action_drain(self) -> None:
        worker = self._worker()
        if worker is None:
            return
        name = worker["id"]
        if worker.get("draining"):
            self._ask(f"Let {name} take work again?", lambda: self._hub.resume(name), "open again")
        else:
            question = f"Drain {name}? It takes nothing new, and what runs there goes on."
            self._ask(question, lambda: self._hub.drain(name), "draining")

    def action_ended(self) -> None:
        assert self._news is not None
        self._news.with_ended = not self._news.with_ended
        self.notify("with what has ended" if self._news.with_ended else "without what has ended", timeout=2)
        self._news.again()

    def action_keys(self) -> None:
        self.push_screen(Told("Keys", Text(KEYS.strip("\n"))))

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.value = self._filter
        field.focus()

    def action_all(self) -> None:
        self._set_filter("")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._set_filter(event.value)

    def _set_filter(self, text: str) -> None:
        self._filter = text
        field = self.query_one("#filter", Input)
        field.remove_class("shown")
        if self.focused is field:
            self._jobs.focus()
        self._show()

    def _ask(self, question: str, act: Callable[[], Document], done: str) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._do(act, lambda found: self.notify(f"{found.get('id', '')} {done}", timeout=3))

        self.push_screen(Asked(question), answered)

    def _do(self, act: Callable[[], Document], then: Callable[[Document], Any]) -> None:
        """By a thread: whatever the hub takes, the view goes on."""

        def work() -> None:
            try:
                found = act()
            except OstlerError as error:
                self.call_from_thread(self.notify, clean(str(error)), severity="error", timeout=8, markup=False)
                return
            self.call_from_thread(then, found)
            if self._news is not None:
                self._news.again()

        self.run_worker(work, thread=True)


def _fill(table: "DataTable[Text]", columns: tuple[str, ...], found: dict[str, list[Text]]) -> None:
    """These rows, with the cursor where it was: on the same thing, wherever that is now."""
    chosen, offset = _chosen(table), table.scroll_offset
    if [str(column.label) for column in table.columns.values()] != list(columns):
        table.clear(columns=True)
        table.add_columns(*columns)
    else:
        table.clear()
    for key, cells in found.items():
        table.add_row(*cells, key=key)
    if chosen in found:
        table.move_cursor(row=list(found).index(chosen), scroll=False)
    table.scroll_to(offset.x, offset.y, animate=False)


def _chosen(table: "DataTable[Text]") -> str:
    if not table.row_count:
        return ""
    return str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)
