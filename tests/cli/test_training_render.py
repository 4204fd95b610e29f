"""The manifest, its sweeps and training jobs as people see them, on terminals of several widths."""

import codecs
import re
from typing import Any

import pytest
from tests.cli import documents
from tests.cli.documents import CHANGED, GRID, KINDS, MANIFEST, NAMES, NOW, RATES, STATUS, WORKERS
from tests.cli.test_render import lines_of

from ostler.cli.render import jobs, machines, manifest, parts, sweeps, terminal, words

SWEEPS = [RATES, GRID, KINDS]
TRAINED = documents.job(
    documents.sha256(b"trained").hexdigest(),
    "failed",
    name="mlp-0.1",
    exit_code=1,
    reason="exit code 1: ValueError: the loss is not finite",
    artifact_id="a1" * 32,
    metrics={"accuracy": 0.9123456, "val_loss": 0.28},
    spec={
        "command": ["python", "-m", "trainer"],
        "training": {"model": "mlp", "mode": "realistic", "hyper": {"lr": 0.1, "deep": True}, "seed": 3},
    },
)


def text_of(part: Any, width: int = 100) -> str:
    return "\n".join(lines_of(part, width))


def status_screen(**more: Any) -> Any:
    totals = {**STATUS, "manifest": MANIFEST, "sweeps": SWEEPS, **more}
    return machines.status_screen("http://h:1", totals, WORKERS, NAMES, None, NOW)


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    screens = [
        manifest.change_table(CHANGED),
        manifest.plan_table(CHANGED),
        sweeps.sweep_table(SWEEPS),
        *(sweeps.sweep_screen(sweep) for sweep in SWEEPS),
        status_screen(),
        jobs.job_screen(TRAINED, NOW),
    ]
    for screen in screens:
        assert max(len(line) for line in lines_of(screen, width)) <= width


def test_an_apply_lists_what_changed_and_only_counts_the_rest() -> None:
    found = lines_of(manifest.change_table(CHANGED))
    assert [line.split()[:3] for line in found[1:5]] == [
        ["+", "inserted", "mlp-0.1"],
        ["+", "inserted", "mlp-huge"],
        ["~", "updated", "gbt"],
        ["–", "absent", "old"],
    ]
    assert found[3].endswith("require_cuda, priority")
    assert "2 inserted, 1 unchanged, 1 updated, 1 absent" in found
    assert "gbt-done" not in "\n".join(found)


def test_an_apply_that_changed_nothing_is_one_line() -> None:
    nothing = {"inserted": 0, "unchanged": 1, "updated": 0, "absent": 0, "jobs": [CHANGED["jobs"][3]]}
    assert lines_of(manifest.change_table(nothing)) == ["0 inserted, 1 unchanged, 0 updated, 0 absent"]


def test_a_long_list_of_changes_is_cut_and_says_so() -> None:
    many = {**CHANGED, "inserted": 70, "jobs": [{**CHANGED["jobs"][0], "name": f"j{n}"} for n in range(70)]}
    found = lines_of(manifest.change_table(many))
    assert found[manifest.MOST_CHANGES + 1] == f"and {70 - manifest.MOST_CHANGES} more"


def test_a_plan_says_of_every_job_where_it_could_run_or_why_nowhere() -> None:
    found = text_of(manifest.plan_table(CHANGED), 140)
    assert re.search(r"\+ inserted +mlp-0\.1 .* gpu-box-1, pi-3\n", found)
    assert re.search(r"\+ inserted +mlp-huge .* needs 80 GiB of memory", found)
    assert re.search(r"= unchanged +gbt-done +✓ succeeded", found)
    assert found.endswith("2 inserted, 1 unchanged, 1 updated, 1 absent, if this were applied")


def test_a_plan_shows_the_old_and_the_new_value_in_the_words_of_the_manifest() -> None:
    changes = [
        ("command", ["train"], ["train", "--fast"]),
        ("env.A", "1", None),
        ("gpu_backend", "", "nvidia"),
        ("gpu_count", 0, 1),
        ("hyper.lr", 0.1, 0.2),
        ("min_memory_gb", 5000.0, 4000.5),
        ("name", "gbt", "eval"),
    ]
    job = {**CHANGED["jobs"][2], "changes": [{"key": key, "old": old, "new": new} for key, old, new in changes]}
    found = text_of(manifest.plan_table({**CHANGED, "jobs": [job]}), 140)
    rows = [line.split()[1:] for line in found.splitlines() if line.startswith("gbt ")]
    assert rows == [
        ["command", '["train"]', '["train",', '"--fast"]'],
        ["env.A", "1", "–"],
        ["require_cuda", "false", "true"],
        ["hyper.lr", "0.1", "0.2"],
        ["min_ram_gib", "5000", "4000.5"],
        ["name", "gbt", "eval"],
    ]
    assert "other names for 1 job: only `ostler apply --replace` gives them" in found


def test_the_status_shows_how_far_the_manifest_and_its_sweeps_are_and_what_failed() -> None:
    found = text_of(status_screen(), 120)
    assert "Manifest  manifest.toml, applied 15m ago" in found
    assert "20 of 50 completed · 14 pending · 1 claimed · 3 running · 12 failed" in found
    assert re.search(r"mlp-\{lr\}-\{width\} +█████████✗▓░ +9 of 12 +1 +val_loss +0\.2655 +lr=0\.001 width=128", found)
    assert re.search(r"gbt-monotone-1 +1m +gpu-box-1 +ValueError: try 1: monotonic", found)
    assert "gbt-monotone-11" not in found
    assert found.endswith("and 2 more: ostler jobs --status failed")
    assert found.index("Manifest") < found.index("Sweeps") < found.index("Failed")


def test_the_errors_of_failed_jobs_are_cut_to_the_width() -> None:
    found = [line for line in lines_of(status_screen(), 80) if "gbt-monotone" in line]
    assert len(found) == 10
    assert all(line.endswith("…") for line in found)


def test_the_status_of_a_fleet_without_a_manifest_does_not_speak_of_one() -> None:
    found = text_of(status_screen(manifest=None, sweeps=[]))
    assert not re.search("Manifest|Sweeps|Failed", found)


def test_many_sweeps_are_cut_on_the_status() -> None:
    many = [{**RATES, "name": f"s{n}"} for n in range(13)]
    assert "and 3 more: ostler sweeps" in text_of(status_screen(sweeps=many))


def test_no_sweeps_are_said_to_be_none() -> None:
    assert "[[sweeps]]" in lines_of(sweeps.sweep_table([]))[0]


@pytest.mark.parametrize(
    ("counts", "bar"),
    [
        ({"completed": 5, "failed": 1, "running": 2, "pending": 2}, "█████✗▓▓░░"),
        ({"completed": 9999, "failed": 1}, "█████████✗"),
        ({"completed": 1, "failed": 1, "running": 1, "pending": 100_000}, "█✗▓░░░░░░░"),
        ({"succeeded": 1, "assigned": 1, "cancelled": 1}, "█–▓"),
        ({}, ""),
    ],
)
def test_a_bar_has_a_cell_for_each_kind_of_state_however_few_there_are(counts: dict[str, int], bar: str) -> None:
    width = 3 if len(bar) == 3 else 10
    assert parts.progress_bar(counts, width).plain == bar


def test_a_sweep_lists_its_runs_best_first_with_a_column_for_each_parameter_that_was_swept() -> None:
    found = lines_of(sweeps.sweep_screen(RATES), 100)
    assert "  fixed     epochs=3" in found
    assert "  best      0.28 with lr=0.003" in found
    table = found.index(next(line for line in found if "LR" in line))
    assert found[table].split() == ["JOB", "LR", "STATE", "VAL_LOSS", "WORKER"]
    assert found[table + 1].split()[:4] == ["★", "mlp-0.003", "0.003", "✓"]
    losses = [float(line.split()[-2]) for line in found[table + 1 : table + 7]]
    assert losses == sorted(losses)


def test_where_more_is_better_the_highest_comes_first() -> None:
    up = documents.sweep(
        "s", [{**job, "value": job["metrics"]["accuracy"]} for job in RATES["jobs"]], "accuracy", "max"
    )
    found = text_of(sweeps.sweep_screen(up))
    assert "accuracy, higher is better" in found
    assert re.search(r"★  mlp-0\.003 .* 0\.72 ", found)


def test_a_failed_run_is_never_the_best_and_does_not_bend_the_picture() -> None:
    lucky = documents.sweep_job("lucky", {"lr": 5.0, "epochs": 3}, "failed", val_loss=0.000001)
    found = text_of(sweeps.sweep_screen(documents.sweep("s", [*RATES["jobs"], lucky])))
    assert "best      0.28 with lr=0.003" in found
    assert re.search(r" lucky .*✗ failed +1e-06", found)
    assert " 0.28┤" in found


def test_one_number_is_drawn_as_points_on_an_axis_and_values_far_apart_on_a_logarithmic_one() -> None:
    found = lines_of(sweeps.sweep_screen(RATES), 80)
    top = found.index("val_loss")
    assert found[top + 1].startswith(" 0.71┤")
    assert found[top + 11].startswith(" 0.28┤")
    assert "★" in found[top + 11]
    drawn = "\n".join(found[top : top + 12])
    assert drawn.count("●") == 5
    assert found[-2].split() == ["0.0001", "0.001", "0.003", "0.01", "0.03", "0.1"]
    assert found[-1].strip() == "lr (log)"
    ticks = [column for column, sign in enumerate(found[-3]) if sign == "┬"]
    assert ticks[3] - ticks[1] == pytest.approx(ticks[5] - ticks[3], abs=1), "equal factors are equal distances"


def test_values_close_together_are_drawn_on_a_plain_axis() -> None:
    near = [documents.sweep_job(f"d{depth}", {"depth": depth}, val_loss=1.0 / depth) for depth in (2, 3, 4, 6)]
    found = lines_of(sweeps.sweep_screen(documents.sweep("d", near)), 80)
    assert found[-1].strip() == "depth"


def test_two_parameters_are_drawn_as_a_shaded_table_with_what_is_missing_in_words() -> None:
    found = lines_of(sweeps.sweep_screen(GRID), 100)
    table = [line.split() for line in found[-7:]]
    assert table[0] == ["lr"]
    assert table[1] == ["width", "0.001", "0.01", "0.1"]
    assert table[2] == ["32", "▓▓", "0.453", "▓▓", "0.48", "░░", "0.75"]
    assert table[4] == ["128", "██", "0.2655", "★", "██", "0.2925", "▒▒", "0.5625"]
    assert table[5] == ["256", "○", "pending", "●", "running", "✗", "failed"]


def test_a_list_that_fills_little_of_its_table_is_drawn_as_bars() -> None:
    diagonal = [documents.sweep_job(f"p{n}", {"a": n, "b": n}, val_loss=float(n)) for n in range(1, 6)]
    found = lines_of(sweeps.sweep_screen(documents.sweep("p", diagonal)), 80)
    assert [line.split()[0] for line in found[-6:-1]] == ["p1", "p2", "p3", "p4", "p5"]
    lengths = [line.count("█") for line in found[-6:-1]]
    assert lengths == sorted(lengths, reverse=True)


def test_words_are_drawn_as_bars_the_best_first() -> None:
    found = lines_of(sweeps.sweep_screen(KINDS), 80)
    assert [line.split()[0] for line in found[-4:-1]] == ["opt-lion", "opt-adam", "opt-sgd"]
    assert found[-4].endswith(" 0.29")
    assert found[-4].count("█") > found[-3].count("█") > found[-2].count("█") == 1


def test_a_sweep_without_a_result_has_no_picture() -> None:
    waiting = documents.sweep("w", [documents.sweep_job(f"w{n}", {"lr": n}, "pending") for n in (1, 2)], metric="")
    found = text_of(sweeps.sweep_screen(waiting))
    assert "none reported" in found
    assert "│" not in found
    assert "█" not in found


def test_a_sweep_of_one_run_is_shown_too() -> None:
    one = documents.sweep("one", [documents.sweep_job("only", {"lr": 0.1}, val_loss=0.5)])
    found = text_of(sweeps.sweep_screen(one))
    assert "fixed     lr=0.1" in found
    assert "best      0.5" in found


def test_parameters_may_be_called_like_columns_and_hold_lists_and_words() -> None:
    odd = [
        documents.sweep_job("a", {"state": [1, 2], "worker": True, "val_loss": "x"}, val_loss=0.0),
        documents.sweep_job("b", {"state": [3], "worker": False}, val_loss=0.0),
    ]
    found = text_of(sweeps.sweep_screen(documents.sweep("odd", odd)), 140)
    assert re.search(r"JOB +HYPER STATE +HYPER WORKER +HYPER VAL_LOSS +STATE +VAL_LOSS +WORKER", found)
    assert re.search(r"a +\[1, 2\] +true +x +✓ completed +0", found)
    assert re.search(r"b +\[3\] +false +– +✓ completed +0", found)


def test_a_large_sweep_is_cut_unless_all_is_asked_for() -> None:
    large = documents.sweep("l", [documents.sweep_job(f"l{n}", {"lr": n}, val_loss=float(n)) for n in range(1, 101)])
    assert "and 70 more; --all lists them" in text_of(sweeps.sweep_screen(large))
    assert len(lines_of(sweeps.sweep_screen(large, every=True))) > 100


def test_a_plain_terminal_gets_the_same_pictures_in_plain_signs() -> None:
    codecs.register_error("ostler.plain", terminal._nearest_sign)
    for sweep in SWEEPS:
        found = text_of(sweeps.sweep_screen(sweep), 80)
        shown = found.encode("ascii", "ostler.plain").decode()
        assert "?" not in shown
        assert [len(line) for line in shown.splitlines()] == [len(line) for line in found.splitlines()]


def test_a_training_job_is_shown_with_what_it_is_about_and_how_to_fetch_its_artifact() -> None:
    found = text_of(jobs.job_screen(TRAINED, NOW))
    for line in (
        r"model +mlp realistic",
        r"hyper +lr=0\.1 deep=true",
        r"seed +3",
        r"metrics +accuracy=0\.91235 val_loss=0\.28",
        r"reason +ValueError: the loss is not finite",
        r"exit code +1",
        r"artifact +a1a1(a1){30}\n +fetch it with: ostler artifacts get a1a1a1a1a1a1",
    ):
        assert re.search(rf"\n +{line}\n", found), line


def test_a_job_that_is_no_training_says_nothing_of_models_and_seeds() -> None:
    assert not re.search(r"\n +(model|seed|hyper|metrics) ", text_of(jobs.job_screen(documents.RUNNING, NOW)))


def test_digests_are_cut_to_what_people_type() -> None:
    digest = TRAINED["id"]
    assert words.short_ids([digest, "chosen"]) == {digest: digest[:12], "chosen": "chosen"}
    assert words.titled({"id": digest, "name": "mlp"}) == f"mlp ({digest[:12]})"


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.9123456, "0.91235"), (12345678.0, "12345678"), (1.23456e-7, "1.2346e-07"), (3.0, "3"), (1e12, "1e+12")],
)
def test_measured_numbers_are_short(value: float, told: str) -> None:
    assert words.figure(value) == told
