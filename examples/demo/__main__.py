"""A small fleet on this machine, from the first job to the last: `make demo`.

A hub and four workers whose hardware is declared (an 8-GPU and a 2-GPU nvidia box, a Mac, a CPU server) run all four
kinds of work: about forty tasks of jobs, the training runs of a manifest, a service and a model. One worker is killed
with -9. The demo ends with a table of what was expected and what happened, and fails if they differ.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from examples.demo.board import Row, draw_verdict
from examples.demo.fleet import WORKERS, DemoFailed, DemoFleet
from examples.demo.jobs import Jobs
from examples.demo.model import Model
from examples.demo.progress import Progress
from examples.demo.service import Service
from examples.demo.training import Training
from rich.console import Console

from ostler.domain.errors import OstlerError

WIDTH_IN_A_FILE = 100
LOG_LINES = 12
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asks the demo to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def main() -> int:
    forget_other_fleets()
    console = Console(width=None if sys.stdout.isatty() else WIDTH_IN_A_FILE)
    fleet = DemoFleet()
    problem = ""
    code = 1
    try:
        raise_on_signals()
        code = play(console, fleet)
        problem = "" if code == 0 else "demo: some of the work differs from the expectation"
    except Interrupted as error:
        console.print(f"demo: {error}; stopping the fleet")
        code = 128 + error.number
    except DemoFailed as error:
        problem = f"demo: {error}\n{read_end(error.log)}"
    except OstlerError as error:
        problem = f"demo: the hub refused or did not answer: {error}\n{read_end(fleet.log('hub'))}"
    except Exception:
        problem = "demo: an error of the demo itself"
        console.print_exception()
    finally:
        ignore_signals()
        fleet.stop()
    if problem:
        console.print(problem, markup=False, highlight=False, soft_wrap=True)
        console.print(f"The logs are kept in {fleet.state}; remove that folder afterwards.", soft_wrap=True)
    elif not fleet.remove():
        console.print(f"demo: could not remove the folder {fleet.state}; remove it by hand", soft_wrap=True)
    if code == 0:
        console.print("A fleet of your own:  . .venv/bin/activate && ostler up", highlight=False)
    return code


def play(console: Console, fleet: DemoFleet) -> int:
    with Progress(console, fleet) as progress:
        start(progress)
        sections, nowhere = do_work(progress)
        documents = progress.hub.jobs()
    console.print(draw_verdict(sections))
    console.print(f"'nowhere' was {nowhere}", soft_wrap=True, highlight=False)
    tasks = sum(sum(one.get("counts", {"": 1}).values()) for one in documents)
    wrong = sum(bool(row.problem) for rows in sections.values() for row in rows)
    outcome = f"{wrong} differ" if wrong else "all as expected"
    console.print(f"{len(documents)} jobs, {tasks} tasks, {progress.spent_s:.1f} s: {outcome}", highlight=False)
    return 1 if wrong else 0


def start(progress: Progress) -> None:
    """A hub, and four workers that have joined it."""
    progress.say("starting a hub and four workers with declared hardware: this machine needs no GPU")
    progress.fleet.start_hub()
    progress.wait_until(progress.fleet.is_listening, "the hub to listen")
    progress.connect()
    for name in WORKERS:
        progress.fleet.start_worker(name)
    progress.wait_until(
        lambda: sum(one["status"] == "ready" for one in progress.hub.workers()) == len(WORKERS), "the four workers"
    )
    progress.say(f"the hub is {progress.fleet.hub_url}, and four workers have joined")


def do_work(progress: Progress) -> tuple[dict[str, list[Row]], str]:
    """Runs all four kinds of work on the one fleet. Returns the comparisons and the reason of the job that fits
    nowhere."""
    jobs, training, service, model = Jobs(progress), Training(progress), Service(progress), Model(progress)
    jobs.hold_the_big_box()
    jobs.submit_others()
    training.apply()
    service.submit()
    service.fetch_page()
    jobs.let_the_big_one_run()
    training.apply_again()
    jobs.kill_a_worker()
    jobs.wait_for_ends()
    model.call()
    model.submit_job()
    model.watch_eviction()
    service.stop()
    sections = {
        "jobs": jobs.compare(),
        "manifest": training.compare(),
        "service": service.compare(),
        "model": model.compare(),
    }
    return sections, jobs.reason_of_nowhere()


def forget_other_fleets() -> None:
    """Removes the settings of another fleet, such as OSTLER_HUB, from this process and all that it starts."""
    for name in [name for name in os.environ if name.startswith("OSTLER_")]:
        del os.environ[name]


def raise_on_signals() -> None:
    """Makes the first signal raise Interrupted. A signal that the demo's starter ignores stays ignored."""

    def interrupt(number: int, _: FrameType | None) -> None:
        ignore_signals()
        raise Interrupted(number)

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def ignore_signals() -> None:
    """The fleet is stopped once and in order, however often Ctrl-C is pressed."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def read_end(log: Path) -> str:
    """The end of a log, and where it is."""
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
    return "\n".join([f"See the log {log}. It ends with:", *(f"  {line}" for line in lines)])


if __name__ == "__main__":
    sys.exit(main())
