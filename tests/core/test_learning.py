"""What ended attempts teach, and what jobs that leave their needs to it then ask for."""

from typing import Any

import pytest
from tests.core.core_fleet import CoreFleet, holding

from ostler.core.events import Keep
from ostler.core.learning import followers, lessons
from ostler.core.learning.kind import STEP_MIB, Kind
from ostler.core.learning.kinds import kind_of
from ostler.domain.job import JobSpec
from ostler.domain.worker import ActiveTask

GIB = 1024
KIND = kind_of(JobSpec(command=["true"]))


def ran(core: CoreFleet, job_id: str, seconds: float, state: str = "succeeded", **end: Any) -> None:
    """It has begun and now it ends."""
    core.accept(job_id)
    core.now += seconds
    core.end(job_id, state, **end)


def known(core: CoreFleet, job_id: str = "") -> Kind:
    found = core.fleet.kinds.of(core.fleet.jobs[job_id].kind if job_id else KIND)
    assert found is not None
    return found


def request(core: CoreFleet, job_id: str) -> tuple[int, int, int]:
    """GPUs, VRAM and memory."""
    found = core.fleet.jobs[job_id].shape.request
    return found.gpu_count, found.vram_mib, found.memory_mib


# What is learnt


def test_a_run_is_learnt_with_what_its_worker_measured_and_kept_with_the_end() -> None:
    core = CoreFleet()
    core.worker("w")
    core.submit("j")
    ran(core, "j", 100.0, run_s=90.0, peak_memory_mib=700, peak_vram_mib=9000)
    (attempt,) = core.ledger.attempts_of("j")
    assert (attempt.run_s, attempt.peak_memory_mib, attempt.peak_vram_mib) == (90.0, 700, 9000)
    core.restart()
    learnt = known(core)
    assert learnt.runs == 1
    assert 85 < learnt.run_s.high(0.5) < 100
    assert 700 <= learnt.memory_mib.high(0.5) < 770
    assert 9000 <= learnt.vram_mib.high(0.5) < 9900


def test_without_a_word_of_its_worker_it_ran_from_its_acceptance_to_its_end() -> None:
    core = CoreFleet()
    core.worker("w")
    core.submit("j")
    ran(core, "j", 100.0)
    assert 100 <= known(core).run_s.high(0.5) < 110


def test_the_peaks_of_a_long_run_come_with_heartbeats_and_stay_where_the_end_says_less() -> None:
    core = CoreFleet()
    core.worker("w")
    core.submit("j")
    core.start("j")
    line = ActiveTask(task_id="j", attempt=core.attempt("j"), peak_memory_mib=500, peak_vram_mib=40)
    core.beat("w", [line])
    (attempt,) = core.ledger.attempts_of("j")
    assert (attempt.peak_memory_mib, attempt.peak_vram_mib) == (500, 40)
    core.beat("w", holding(("j", core.attempt("j"))))
    core.beat("w", [ActiveTask(task_id="j", attempt=core.attempt("j"), peak_memory_mib=510)])
    assert core.ledger.attempts_of("j")[0].peak_memory_mib == 500  # a little more is not worth a row
    core.end("j", peak_memory_mib=300, peak_vram_mib=50)
    (attempt,) = core.ledger.attempts_of("j")
    assert (attempt.peak_memory_mib, attempt.peak_vram_mib) == (500, 50)


@pytest.mark.parametrize(
    ("state", "end", "part"),
    [
        ("succeeded", {}, "run"),
        ("completed", {}, "run"),
        ("failed", {}, "failed"),
        ("failed", {"error": "max_runtime"}, "cut"),
        ("cancelled", {}, "cut"),
        ("returned", {"fault": "drain"}, "cut"),
    ],
)
def test_only_a_success_is_a_whole_run(state: str, end: dict[str, Any], part: str) -> None:
    core = CoreFleet()
    core.worker("w")
    core.submit("j")
    ran(core, "j", 50.0, state, **end)
    learnt = known(core)
    found = {"run": learnt.run_s.seen, "failed": learnt.failed_s.seen, "cut": learnt.run_s.cut}
    assert [name for name, weights in found.items() if weights] == [part]


def test_what_was_cancelled_or_preempted_is_cut_short_and_what_was_never_started_teaches_nothing() -> None:
    core = CoreFleet()
    core.worker("w")
    core.submit("j")
    core.accept("j")
    core.now += 20
    core.cancel("j")
    core.end("j", "cancelled")
    assert known(core).run_s.cut and not known(core).run_s.seen
    core.submit("k")
    core.end("k", "returned", fault="drain")
    assert known(core).runs == 1


def test_every_task_of_an_array_is_a_run_of_its_kind() -> None:
    core = CoreFleet()
    core.worker("w")
    core.submit("a", array=4)
    for index in range(3):
        ran(core, f"a.{index}", 10.0)
    assert known(core, "a").runs == 3


def test_odds_and_ends_are_kept_with_the_batch_and_forgotten() -> None:
    core = CoreFleet()
    core.turn(Keep(scope="s", key="a", value=b"1"), Keep(scope="s", key="b", value=b"2"))
    core.turn(Keep(scope="s", key="a", value=None))
    assert core.ledger.kept("s") == {"b": b"2"}


# Needs that are left to it


def test_while_nothing_is_known_auto_is_a_whole_gpu_or_what_the_spec_says_first() -> None:
    core = CoreFleet()
    core.submit("a", min_vram_gb="auto", min_memory_gb="auto")
    core.submit("b", min_vram_gb="auto", first_vram_gb=6, min_memory_gb="auto", first_memory_gb=2)
    core.submit("c", min_vram_gb="auto", gpu_count=2)
    assert request(core, "a") == (1, 0, 0)
    assert request(core, "b") == (0, 6 * GIB, 2 * GIB)
    assert request(core, "c") == (2, 0, 0)


def test_auto_asks_for_what_its_kind_took_with_a_margin_as_a_share_of_a_gpu() -> None:
    core = CoreFleet()
    core.worker("w", devices=[24, 24])
    core.submit("a", min_vram_gb="auto", min_memory_gb="auto", name="kind-1")
    assert core.devices("a") == (0,)
    ran(core, "a", 10.0, peak_vram_mib=5000, peak_memory_mib=900)
    core.submit("b", min_vram_gb="auto", min_memory_gb="auto", name="kind-2")
    gpus, vram_mib, memory_mib = request(core, "b")
    assert gpus == 0
    assert 5000 < vram_mib < 6500 and vram_mib % STEP_MIB == 0
    assert 900 < memory_mib <= 1280
    holder = core.holder("b")
    assert holder is not None and holder.held.grant.share_mib == vram_mib
    assert lessons.told(core.fleet, core.fleet.jobs["b"]).startswith("VRAM auto: 5.")
    assert "learnt from 1 run;" in core.why("b").needs


def test_what_waits_follows_what_is_learnt_meanwhile() -> None:
    """Three that would each take a whole GPU fit one as soon as it is known how little they take."""
    core = CoreFleet()
    core.worker("w", devices=[24])
    for name in ("a", "b", "c", "d"):
        core.submit(name, min_vram_gb="auto", name="same")
    assert [core.where(name) for name in ("a", "b", "c", "d")] == ["w", "", "", ""]
    ran(core, "a", 10.0, peak_vram_mib=3000)
    assert [core.where(name) for name in ("b", "c", "d")] == ["w", "w", "w"]


def test_a_restart_asks_for_the_same() -> None:
    core = CoreFleet()
    core.worker("w", devices=[24])
    core.submit("a", min_vram_gb="auto", name="same")
    ran(core, "a", 10.0, peak_vram_mib=3000)
    core.leave("w")
    core.submit("b", min_vram_gb="auto", name="same")
    before = request(core, "b")
    core.restart()
    assert request(core, "b") == before


def test_a_margin_does_not_ask_for_more_than_a_run_had_that_succeeded() -> None:
    core = CoreFleet()
    core.worker("w", devices=[24])
    core.submit("a", min_vram_gb="auto", name="same")
    ran(core, "a", 10.0, peak_vram_mib=23_900)
    core.submit("b", min_vram_gb="auto", name="same")
    assert core.where("b") == "w"


def test_many_that_follow_are_seen_to_little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "AT_ONCE", 2)
    core = CoreFleet()
    core.worker("w", devices=[24])
    for number in range(6):
        core.submit(f"j{number}", min_vram_gb="auto", name="same", labels=[] if number == 0 else ["no = where"])
    core.submit("other", array=4, name="same", min_vram_gb="auto")
    ran(core, "j0", 10.0, peak_vram_mib=3000)
    waiting = [f"j{number}" for number in range(1, 6)]
    assert sum(request(core, name)[0] == 0 for name in waiting) == 1  # the first two that follow: j0 and j1
    for index in range(3):
        ran(core, f"other.{index}", 10.0, peak_vram_mib=3000)
    assert all(request(core, name)[0] == 0 for name in waiting)


# Out of VRAM


def oom(core: CoreFleet, job_id: str) -> None:
    core.accept(job_id)
    core.end(job_id, "failed", error="out of GPU memory: CUDA out of memory", lacked="vram")


def test_by_rule_a_task_that_ran_out_of_vram_runs_again_on_a_larger_device_once_for_each_size() -> None:
    core = CoreFleet()
    core.worker("small", devices=[16], hostname="small")
    core.worker("large", devices=[80])
    core.submit("j", gpu_count=1, on_oom="larger", prefer_labels=["hostname = small"])
    assert core.where("j") == "small"
    oom(core, "j")
    assert core.where("j") == "large"
    assert "again with more than 16 GiB" in core.ledger.feed(after=0, subject="j")[-2].body["reason"]  # type: ignore[operator]
    core.restart()
    core.register("large", holds=holding(("j", core.attempt("j"))), slots=4)
    oom(core, "j")
    assert core.state("j") == "failed"
    assert core.job("j").reason.endswith("no worker has more than the 80 GiB that it had")
    assert core.task("j").failures == 1


def test_a_share_that_was_too_little_becomes_a_whole_device() -> None:
    core = CoreFleet()
    core.worker("w", devices=[24])
    core.submit("j", min_vram_gb=4, on_oom="larger")
    oom(core, "j")
    assert request(core, "j")[:2] == (1, 4 * GIB + 1)
    holder = core.holder("j")
    assert holder is not None and not holder.held.grant.share_mib


def test_what_it_outgrew_is_known_after_a_restart() -> None:
    core = CoreFleet()
    core.worker("small", devices=[16], hostname="small")
    core.worker("large", devices=[80])
    core.drain("large")
    core.submit("j", gpu_count=1, on_oom="larger")
    oom(core, "j")
    assert core.state("j") == "pending"
    core.restart()
    core.register("small", slots=4)
    assert core.state("j") == "pending"
    assert request(core, "j")[:2] == (1, 16 * GIB + 1)


def test_without_the_rule_it_fails_and_is_told_what_to_do() -> None:
    core = CoreFleet()
    core.worker("w", devices=[16])
    core.submit("j", gpu_count=1)
    oom(core, "j")
    assert core.state("j") == "failed"
    assert core.job("j").reason.endswith("; ask for more with min_vram_gb, or give on_oom = 'larger'")


def test_a_kind_that_ran_out_of_vram_asks_for_more_from_then_on() -> None:
    core = CoreFleet()
    core.worker("small", devices=[16], hostname="small")
    core.worker("large", devices=[80])
    core.submit("a", min_vram_gb="auto", name="same", prefer_labels=["hostname = small"])
    oom(core, "a")
    core.submit("b", min_vram_gb="auto", name="same")
    assert core.where("b") == "large"


def test_every_task_of_an_array_that_ran_out_of_vram_runs_again_with_more() -> None:
    core = CoreFleet()
    core.worker("w", devices=[24])
    core.submit("j", array=3, min_vram_gb=4, on_oom="larger")
    tasks = [f"j.{index}" for index in range(3)]
    core.start(*tasks)
    for task in tasks:
        core.end(task, "failed", error="out of GPU memory", lacked="vram")
    assert core.states(*tasks) == ["assigned", "pending", "pending"]
    oom(core, "j.0")
    assert core.state("j.0") == "failed", "no device is larger"


@pytest.mark.parametrize("what", ["vram", "memory"])
def test_a_run_that_ran_out_of_the_largest_there_is_does_not_keep_its_like_from_running_for_ever(what: str) -> None:
    core = CoreFleet()
    core.worker("w", devices=[24], memory=64)
    asked = {f"min_{what}_gb": "auto"}
    core.submit("a", name="same", user_id="ann", **asked)
    ran(core, "a", 10.0, "failed", lacked=what, peak_memory_mib=64 * GIB)
    core.submit("b", name="same", user_id="bob", **asked)
    assert core.where("b") == "w"
    (needs,) = {"vram": request(core, "b")[1:2], "memory": request(core, "b")[2:]}[what]
    assert 0 < needs <= 24 * GIB if what == "vram" else 48 * GIB < needs <= 64 * GIB
