"""What was tried and what held, for a person and as JSON."""

import platform
import sys
import time
from pathlib import Path

import apsw
import msgspec
from benchmarks.process_fleet import machine

from chaos.judge import SHOWN
from chaos.trial import Trial
from ostler import __version__

PAGE, DATA = "report.md", "report.json"


class Campaign(msgspec.Struct):
    at: str
    ostler: str
    python: str
    sqlite: str
    system: str
    machine: str
    command: str
    trials: list[Trial] = []

    @property
    def sound(self) -> bool:
        return all(trial.sound for trial in self.trials)


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def begun(command: str) -> Campaign:
    return Campaign(
        at=now(),
        ostler=__version__,
        python=sys.version.split()[0],
        sqlite=apsw.sqlite_lib_version(),
        system=f"{platform.system()} {platform.release().split('-')[0]}",
        machine=machine(),
        command=command,
    )


def earlier(folder: Path) -> list[Trial]:
    """What the report of before has, where there is one."""
    file = folder / DATA
    return msgspec.json.decode(file.read_bytes(), type=Campaign).trials if file.exists() else []


def write(campaign: Campaign, folder: Path) -> Path:
    """After every trial, so that one that is cut short leaves what was found."""
    folder.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(campaign), indent=1)
    (folder / DATA).write_bytes(data + b"\n")
    (folder / PAGE).write_text(page(campaign))
    return folder / PAGE


def page(campaign: Campaign) -> str:
    lines = [
        "# Real faults on real processes",
        "",
        f"`{campaign.command}`, {campaign.at}: Ostler {campaign.ostler}, Python {campaign.python}, "
        f"SQLite {campaign.sqlite}, {campaign.system}; {campaign.machine}.",
        "",
        "| fault | tried | promises | begun | took | seed |",
        "|---|---|---|---|---|---|",
        *(_row(trial) for trial in campaign.trials),
    ]
    for trial in campaign.trials:
        lines += ["", f"## {trial.name}", trial.about, ""]
        if trial.skipped:
            lines.append(f"Not tried here: {trial.skipped}.")
        lines += [f"- **broke off**: {trial.broke}"] if trial.broke else []
        for promise in trial.promises:
            word = "held" if promise.held else f"**BROKEN** for {len(promise.broken)}"
            lines.append(f"- {promise.text}: {word} (of {promise.looked_at:,})")
            lines += [f"  - {one}" for one in promise.broken[:SHOWN]]
        if trial.figures:
            lines += ["", "; ".join(f"{name}: {value:,g}" for name, value in trial.figures.items()) + "."]
    return "\n".join(lines) + "\n"


def _row(trial: Trial) -> str:
    tried = ", ".join(f"{count:,} × {what}" for what, count in trial.tried.items()) or "–"
    return f"| {trial.name} | {tried} | {verdict(trial)} | {trial.at} | {trial.seconds:.0f} s | {trial.seed} |"


def verdict(trial: Trial) -> str:
    if trial.skipped:
        return "not tried"
    broken = sum(not promise.held for promise in trial.promises)
    if trial.broke:
        return "broke off"
    return f"{broken} of {len(trial.promises)} BROKEN" if broken else f"all {len(trial.promises)} held"
