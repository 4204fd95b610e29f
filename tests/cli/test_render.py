"""What people see, on terminals of several widths, from documents as a hub sends them."""

import io
import re
from typing import Any

import pytest
from rich.console import Console
from tests.cli import documents
from tests.cli.documents import FAILED, NAMES, NOW, RUNNING, STATUS, SWEEP, WAITING, WHY, WORKERS

from ostler.cli.render import jobs, machines, why, words
from ostler.cli.render.check import check_screen
from ostler.cli.render.columns import Columns
from ostler.cli.render.parts import state_text
from ostler.cli.render.progress import task_counts
from ostler.domain import states
from ostler.domain.worker import Capabilities, GpuInfo


def lines_of(part: Any, width: int = 100, **more: Any) -> list[str]:
    console = Console(file=io.StringIO(), record=True, width=width, highlight=False, markup=False, emoji=False, **more)
    console.print(part)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_job_table_has_a_line_for_each_job() -> None:
    found = lines_of(jobs.job_table([{**WAITING, "reason": WHY["summary"]}, RUNNING, SWEEP, FAILED], NOW), 180)
    assert found[0].split() == "ID NAME STATE WORKER NEEDS AGE REASON".split()
    assert re.split(r"  +", found[1]) == [
        "01hq8xk2m0q4r5t6v",
        "mlp-large",
        "○ pending",
        "4×A100 · 8 cores · 16 GiB · zone = eu",
        "12m",
        "waits for room: needs 4 GPUs; gpu-box-1 has 2 free of 4",
    ]
    assert "gpu-box-1" in found[2]
    assert "● running 12/100 (1 ✗)" in found[3]
    assert re.split(r"  +", found[4])[-2:] == ["1d 1h", "exit code 3"]


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    reasons = [{**WAITING, "reason": WHY["summary"]}, RUNNING, SWEEP, FAILED]
    screens = [
        jobs.job_table(reasons, NOW),
        jobs.job_screen(RUNNING, NOW),
        why.why_screen("mlp-large", WHY),
        machines.worker_table(WORKERS, NOW),
        machines.worker_screen(WORKERS[0], NAMES, NOW),
        machines.status_screen("http://127.0.0.1:7600", STATUS, WORKERS, NAMES, {**WAITING, "why": WHY}, NOW),
    ]
    for screen in screens:
        assert max(len(line) for line in lines_of(screen, width)) <= width


def test_a_narrow_terminal_keeps_ids_and_states_whole() -> None:
    found = "\n".join(lines_of(jobs.job_table([WAITING, RUNNING, SWEEP, FAILED], NOW), 60))
    for text in ("01hq8xk2m0q4r5t6v ", "01hq8vm9d2q4 ", "nightly-eval-00017", "○ pending", "● running"):
        assert text in found


def test_a_job_that_waits_again_is_not_said_to_be_where_it_was() -> None:
    waits = {**RUNNING, "state": "pending", "reason": "gpu-box-1 did not come back within 30 s"}
    assert lines_of(jobs.job_screen(waits, NOW))[0] == "mlp  ○ pending"


def test_no_jobs_are_said_to_be_none() -> None:
    assert lines_of(jobs.job_table([])) == ["no jobs"]


def test_a_job_is_shown_with_its_attempts_and_what_to_do_next() -> None:
    found = "\n".join(lines_of(jobs.job_screen(RUNNING, NOW)))
    assert found.startswith("mlp  ● running on gpu-box-1 for 5m")
    assert re.search(r"command +python train.py --lr 3e-4\n", found)
    assert re.search(r"limits +runs for 2h at most · up to 2 more tries after a failure\n", found)
    assert re.search(r"1  gpu-box-2 +◌ orphaned +11m ago +5m +its worker went silent", found)
    assert f"ostler logs {RUNNING['id']}" in found


def test_the_reason_of_a_failed_job_is_shown_unless_it_is_only_the_exit_code() -> None:
    failed = {**RUNNING, "state": "failed", "exit_code": 3}
    both = {**failed, "reason": "exit code 3; the epilog failed with exit code 4"}
    assert re.search(r"reason +exit code 3; the epilog failed", "\n".join(lines_of(jobs.job_screen(both, NOW))))
    for reason in ("exit code 3", "exit code 137 (SIGKILL)"):
        assert "reason " not in "\n".join(lines_of(jobs.job_screen({**failed, "reason": reason}, NOW)))


def test_a_service_is_shown_with_where_it_is_reached() -> None:
    service = {**RUNNING, "name": "a clock", "spec": {**RUNNING["spec"], "type": "service"}}
    assert "/services/a%20clock/ on the hub" in "\n".join(lines_of(jobs.job_screen(service, NOW)))
    assert "/services/" not in "\n".join(lines_of(jobs.job_screen(RUNNING, NOW)))


def test_what_looks_like_a_secret_is_not_put_on_a_screen() -> None:
    found = "\n".join(lines_of(jobs.job_screen(RUNNING, NOW)))
    assert "RATE=0.1" in found
    assert "hunter2" not in found


def test_an_array_that_has_ended_is_listed_by_how_many_failed() -> None:
    ended = [
        {**SWEEP, "state": "failed", "counts": {"succeeded": 99, "failed": 1}},
        {**SWEEP, "id": "other", "state": "succeeded", "counts": {"succeeded": 100}},
    ]
    found = "\n".join(lines_of(jobs.job_table(ended, NOW)))
    assert "✗ failed 1 of 100 " in found
    assert "✓ succeeded 100 " in found


def test_tasks_of_one_array_are_counted_on_the_status_not_listed() -> None:
    busy = {**WORKERS[2], "tasks": [{"task_id": f"{SWEEP['id']}.{n}", "state": "running"} for n in range(40)]}
    found = "\n".join(lines_of(machines.status_screen("http://h:1", STATUS, [busy], NAMES, None, NOW)))
    assert "sweep ×40" in found


def test_an_array_is_told_by_its_counts() -> None:
    found = "\n".join(lines_of(jobs.job_screen(SWEEP, NOW)))
    assert "11 of 100 succeeded · 85 pending · 3 running · 1 failed" in found
    assert "--tasks" in found


def test_tasks_are_listed_with_their_exit_codes() -> None:
    rows = [
        {"id": "s.0", "state": "succeeded", "worker": "a", "exit_code": 0, "reason": "", "started_at": documents.at(9)},
        {"id": "s.1", "state": "failed", "worker": "b", "exit_code": 7, "reason": "exit code 7"},
    ]
    found = lines_of(jobs.task_table(rows, NOW))
    assert found[1].split() == ["s.0", "✓", "succeeded", "a", "9s", "0"]
    assert found[2].split() == ["s.1", "✗", "failed", "b", "7", "exit", "code", "7"]


def test_why_says_the_summary_first_then_each_worker_nearest_first_then_the_change() -> None:
    found = lines_of(why.why_screen("mlp-large", WHY))
    assert found[0] == "mlp-large  ○ pending"
    assert found[1] == "Waits for room: needs 4 GPUs; gpu-box-1 has 2 free of 4."
    assert [line.split()[0] for line in found[4:] if line[:1].strip()][:3] == ["gpu-box-1", "gpu-box-2", "pi-3"]
    assert "needs 4 GPUs; has 2 free of 4" in found[4]
    assert found[-1] == "To start it now: ask for 2 GPUs instead of 4 (on gpu-box-1)"


def test_why_puts_workers_that_the_same_keeps_from_it_into_one_row() -> None:
    alike = [
        {"id": f"w{n:03}", "fits": False, "reasons": [f"needs 9 cores; w{n:03} has 1 free of 1"]} for n in range(50)
    ]
    other = {"id": "near", "fits": True, "reasons": []}
    found = lines_of(why.why_screen("x", {**WHY, "workers": [*alike, other]}))
    assert found[4].split() == ["near", "✓", "yes"]
    assert found[5].split() == ["w000", "✗", "no", "needs", "9", "cores;", "has", "1", "free", "of", "1"]
    assert found[6].strip() == "and 49 more workers like it"
    assert len(lines_of(why.why_screen("x", {**WHY, "workers": alike}, every_worker=True))) >= 50


def test_why_with_many_kinds_of_reasons_shows_the_nearest_and_says_how_many_are_left_out() -> None:
    far = [{"id": f"w{n:03}", "fits": False, "reasons": [f"needs 99 cores; w{n:03} has {n}"]} for n in range(50)]
    assert any("30 more workers" in line for line in lines_of(why.why_screen("x", {**WHY, "workers": far})))


def test_why_tells_who_is_in_the_way_what_else_would_start_it_and_when_it_is_expected() -> None:
    until = {"low_s": 60.0, "likely_s": 600.0, "high_s": 4000.0}
    holders = [
        {"worker": "box", "job": "01a", "what": "GPUs 0, 1", "until": until},
        {"worker": "box", "job": "01b", "kind": "held", "what": "the next place"},
    ]
    told = {
        **WHY,
        "holders": holders,
        "changes": [{"words": WHY["change"]}, {"words": "resume gpu-box-2"}],
        "estimate": "in about 12 min; in four of five cases between 5 min and 1 h from now",
    }
    found = lines_of(why.why_screen("x", told, names={"01a": "train"}))
    assert any(line.split()[:3] == ["box", "train", "GPUs"] and "10m more, 1h 6m at worst" in line for line in found)
    assert any("held for 01b" in line and line.endswith("not known") for line in found)
    assert "  or resume gpu-box-2" in found
    assert any(line.startswith("Expected to start: in about 12 min") for line in found)


def test_why_of_what_has_ended_shows_the_end_of_its_log() -> None:
    ended = {"state": "failed", "summary": "failed: exit code 3", "log_tail": "one\n\x1b[31mout of luck"}
    assert lines_of(why.why_screen("x", ended))[-3:] == ["The end of its log", "  one", "  ?[31mout of luck"]


def test_what_if_shows_both_sides_and_whom_it_moves() -> None:
    def side(low: float, likely: float, high: float) -> dict[str, Any]:
        return {"low": documents.at(-low), "likely": documents.at(-likely), "high": documents.at(-high)}

    found = {
        "now": {"start": side(600, 7200, 10800), "end": side(700, 7300, 10900)},
        "then": {"start": side(0, 0, 60), "end": side(100, 100, 160), "summary": "it is assigned on box"},
        "earlier": {
            "count": 1,
            "jobs": [{"id": "01a", "by_s": -300, "now": documents.at(-900), "then": documents.at(-600)}],
        },
        "later": {"count": 0, "jobs": []},
        "compared": 12,
    }
    found["later"] = {"count": 1, "jobs": [{"id": "01b", "by_s": None, "now": documents.at(-900), "then": None}]}
    lines = lines_of(why.whatif_screen("mlp", ["2 workers more like box"], found, {"01a": "eval"}, NOW))
    assert lines[0] == "What if: 2 workers more like box"
    assert any("in 2h (10m – 3h)" in line and "in 0s (0s – 1m)" in line for line in lines)
    assert "1 would start earlier, 1 later, of 12 other jobs that could be compared" in lines
    assert any(line.strip().startswith("eval") and line.endswith("5m earlier") for line in lines)
    assert any("01b" in line and "in 15m" in line and "never" in line for line in lines)


def test_why_of_what_has_ended_is_one_sentence() -> None:
    ended = {"state": "failed", "summary": "failed: exit code 3", "blockers": [], "workers": [], "change": None}
    assert lines_of(why.why_screen("nightly", ended)) == ["nightly  ✗ failed", "Failed: exit code 3."]


def test_workers_are_listed_with_what_is_free() -> None:
    found = lines_of(machines.worker_table(WORKERS, NOW), 140)
    assert "▪▪▪▫ 3 of 4 A100 80 GiB" in found[1]
    assert "220 of 256 GiB" in found[1]
    assert "zone=eu" in found[1]
    assert "✗ offline" in found[2]
    assert "◐ draining" in found[3]


def test_no_workers_are_said_with_how_to_start_one() -> None:
    assert "ostler worker --hub URL" in lines_of(machines.worker_table([]))[0]


def test_a_worker_is_shown_with_what_holds_each_gpu() -> None:
    found = "\n".join(lines_of(machines.worker_screen(WORKERS[0], NAMES, NOW)))
    assert re.search(r"git commit +4f1c2d9\n", found)
    assert re.search(r"2 +A100 +40 of 80 GiB +sweep.12 \(16 GiB\), lone \(24 GiB\)", found)
    assert re.search(r"3 +A100 +80 of 80 GiB +free", found)


def test_the_status_has_the_fleet_the_queue_and_who_waits_longest() -> None:
    screen = machines.status_screen("http://h:1", STATUS, WORKERS, NAMES, {**WAITING, "why": WHY}, NOW)
    found = lines_of(screen, 120)
    assert found[0] == "Ostler 0.1.0 at http://h:1  up 3h 3m"
    assert found[1].startswith("2 of 3 workers connected · 3 of 4 GPUs held · 9 of 68 cores held")
    assert any("mlp (GPU 0, 1), sweep.12 (16 GiB of GPU 2)" in line for line in found)
    assert "Jobs  ○ pending 12 · ● running 3" in found
    assert found[-2].startswith("mlp-large (01hq8xk2m0q4r5t6v7) has waited longest, 12m:")
    assert found[-1].strip() == WHY["summary"]


def test_the_status_of_an_empty_fleet_says_what_is_missing() -> None:
    nothing = {**STATUS, "jobs": {}, "workers": {"ready": 0, "busy": 0, "offline": 0}}
    found = "\n".join(lines_of(machines.status_screen("http://h:1", nothing, [], {}, None, NOW)))
    assert "no workers; start one with" in found
    assert "none waiting, none running" in found


def test_every_state_has_a_sign_of_its_own_and_a_style() -> None:
    signs = [words.STATE_SIGNS[state] for state in states.STATES]
    assert len(set(signs)) == len(signs)
    assert set(states.STATES) <= words.STATE_STYLES.keys()
    assert "green" not in " ".join(words.STATE_STYLES.values())


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for terminal, coloured in ((True, True), (False, False)):
        out = io.StringIO()
        Console(file=out, force_terminal=terminal, color_system="standard" if terminal else "auto").print(
            state_text("failed")
        )
        assert ("\x1b[" in out.getvalue()) is coloured


def test_text_from_others_cannot_steer_the_terminal() -> None:
    evil = documents.job("x1", name="a\x1b[2Jb\r\x07", reason="\x9b31m")
    found = "\n".join(lines_of(jobs.job_table([evil], NOW)))
    assert "a?[2Jb??" in found
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", found)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (75, "1m 15s"),
        (700, "11m"),
        (3600, "1h"),
        (7500, "2h 5m"),
        (90_000, "1d 1h"),
    ],
)
def test_lengths_of_time_have_at_most_two_units(seconds: float, told: str) -> None:
    assert words.span(seconds) == told


def test_a_clock_that_is_behind_gives_no_negative_age() -> None:
    assert words.since(documents.at(-30), NOW) == "0s"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, "–"),
        ({"gpu_count": 2, "gpu_type": "A100", "min_cpu_cores": 8, "min_memory_gb": 16}, "2×A100 · 8 cores · 16 GiB"),
        ({"gpu_count": 1}, "1×GPU"),
        ({"gpu_count": 1, "gpu_backend": "metal", "min_vram_gb": 24}, "1×metal with 24 GiB"),
        ({"min_vram_gb": 0.5, "gpu_type": "auto"}, "512 MiB VRAM"),
        ({"min_vram_gb": 24, "gpu_backend": "metal"}, "24 GiB VRAM (metal)"),
        ({"gpu_share": 0.5}, "0.5 of a GPU"),
        ({"gpu_share": 0.25, "gpu_type": "A100|H100", "min_vram_gb": 8}, "0.25 of a A100|H100 GPU with 8 GiB"),
        ({"min_cpu_cores": 0.5}, "0.5 cores"),
        ({"min_cpu_cores": 1, "node_count": 2}, "1 core · 2 nodes"),
        ({"gpu_backend": "cpu", "labels": ["zone = eu"]}, "cpu · zone = eu"),
    ],
)
def test_needs_read_like_a_shopping_list(spec: dict[str, Any], told: str) -> None:
    assert words.needs(spec) == told


def test_short_ids_tell_their_jobs_apart_and_chosen_ids_stay_whole() -> None:
    ids = ["01hq8xk2m0q4r5t6v7", "01hq8xk2m0q4r5t6w8", "01hq8vm9d2zzzzzzzz", "train-llama-00001"]
    short = words.short_ids(ids)
    assert short[ids[0]] == "01hq8xk2m0q4r5t6v"
    assert short[ids[1]] == "01hq8xk2m0q4r5t6w"
    assert short[ids[2]] == "01hq8vm9d2zz"
    assert short[ids[3]] == ids[3]


@pytest.mark.parametrize(
    ("code", "told"), [(0, "0"), (3, "3"), (-15, "143 (SIGTERM)"), (137, "137 (SIGKILL)"), (255, "255"), (None, "")]
)
def test_exit_codes_name_the_signal(code: int | None, told: str) -> None:
    assert words.exit_code_words(code) == told


def test_progress_counts_every_task_of_every_job() -> None:
    assert task_counts({"a": SWEEP, "b": RUNNING}) == {"pending": 85, "running": 4, "succeeded": 11, "failed": 1}


def test_a_table_gives_up_its_least_needed_column_before_the_others_lose_a_letter() -> None:
    grid = Columns("id", "note", "extra", cut={"note": 10}, drop=("extra",))
    grid.add("0123456789", "a note of some length", "an extra of some length")
    assert lines_of(grid, 70)[1].split("  ") == ["0123456789", "a note of some length", "an extra of some length"]
    assert lines_of(grid, 34)[1] == "0123456789  a note of some length"
    assert lines_of(grid, 26)[1] == "0123456789  a note of som…"


def test_the_check_of_a_machine_names_its_driver_and_the_cuda_that_goes_with_it() -> None:
    gpus = GpuInfo(gpu_type="A100", count=1, driver="550.54.15", cuda="12.4")
    shown = lines_of(check_screen(Capabilities(hostname="box", gpu_info=gpus), 0.0, [], []))
    assert any(line.endswith("550.54.15 (CUDA 12.4)") for line in shown)


def test_the_check_of_a_machine_names_the_git_commit_that_it_announces() -> None:
    commit = "0123456789" * 4
    shown = lines_of(check_screen(Capabilities(hostname="box", git_commit=commit), 0.0, [], []))
    assert any(line.split() == ["git", "commit", commit] for line in shown)


def test_the_table_of_machines_leaves_out_the_facts_that_fill_every_row() -> None:
    facts = {"hostname": "box", "torch": "2.9.1", "driver": "570", "cuda": "13.0"}
    shown = "\n".join(lines_of(machines.worker_table([{**WORKERS[0], "labels": {**facts, "zone": "eu"}}], NOW), 200))
    assert "zone=eu" in shown
    assert not any(f"{name}=" in shown for name in facts)
