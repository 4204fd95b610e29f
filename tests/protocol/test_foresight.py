"""Why, when and what if, over HTTP: answered on copies, so that nothing real is touched."""

import asyncio
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Worker
from tests.protocol.hub import RunningHub

from ostler.core.fleet import Fleet
from ostler.domain.quota import Quota, Quotas
from ostler.hub import foresight
from ostler.hub.apart import Copy, Work
from ostler.hub.api import whatif
from ostler.hub.settings import Settings

Document = dict[str, Any]

PATIENT_S = 20.0
"""What is looked for is found much sooner, except where many tests run at once."""
PATIENT = {"within_s": PATIENT_S}


@pytest.fixture(autouse=True)
def patience(hub: RunningHub) -> None:
    hub.foresight.within_s = PATIENT_S


async def busy(hub: RunningHub, api: Api) -> tuple[str, str]:
    """One GPU, the job that has it, and one that waits for it."""
    running, waiting, _ = await busy_worker(hub, api)
    return running, waiting


async def busy_worker(hub: RunningHub, api: Api) -> tuple[str, str, Worker]:
    worker = await hub.worker("box", gpu_count=1, vram_gb=24)
    running = await api.submit(gpu_count=1, name="train")
    await worker.take(running)
    return running, await api.submit(gpu_count=1, name="next"), worker


async def test_why_of_a_waiting_job_says_who_holds_it_what_would_start_it_and_when(hub: RunningHub, api: Api) -> None:
    running, waiting = await busy(hub, api)
    why = await api.why(waiting)
    assert why["summary"] == "waits for room: needs 1 GPU; box has 0 free of 1"
    assert (why["state"], why["dominant"]) == ("pending", "gpu_count")
    assert why["alike"] == [
        {
            "workers": ["box"],
            "fits": False,
            "unmet": [{"axis": "gpu_count", "reason": "needs 1 GPU; box has 0 free of 1", "lasting": False}],
        }
    ]
    (holder,) = why["holders"]
    assert (holder["job"], holder["worker"], holder["what"]) == (running, "box", "GPU 0")
    assert holder["until"]["low_s"] < holder["until"]["likely_s"] < holder["until"]["high_s"]
    assert why["change"] == why["changes"][0]["words"] == "add a machine with 1 GPU"
    start, end = why["expected"]["start"], why["expected"]["end"]
    assert start["low"] <= start["likely"] <= start["high"]
    assert end["likely"] > start["likely"]
    assert why["estimate"].startswith("in about")


async def test_why_of_a_running_job_says_why_it_is_there_and_when_it_ends(hub: RunningHub, api: Api) -> None:
    running, _ = await busy(hub, api)
    why = await api.why(running)
    assert f"{running} is running on box" in why["summary"]
    assert why["expected"]["end"]["likely"] and "start" not in why["expected"]
    assert why["estimate"].startswith("ends in about")


async def test_why_of_an_ended_job_says_what_ended_it_with_the_end_of_its_log(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker("box")
    job = await api.submit()
    taken = await worker.take(job)
    url = f"/v1/tasks/{job}/logs?attempt={taken.attempt}&offset=0&final=1"
    joined = hub.caller(hub.join_token)
    assert (await joined.call("POST", url, data=b"one\nout of luck\n")).status == 200
    await worker.end(taken, "failed", exit_code=3, error="exit code 3: out of luck")
    why = await api.why(job)
    assert why["summary"] == "failed: exit code 3: out of luck"
    assert why["log_tail"] == "one\nout of luck"


async def test_whose_job_is_in_the_way_is_told_only_to_those_who_may_see_it(hub: RunningHub, api: Api) -> None:
    running, _ = await busy(hub, api)
    ann = await hub.user("ann")
    why = await ann.why(await ann.submit(gpu_count=1))
    assert [(one["job"], one.get("user", "")) for one in why["holders"]] == [("another user's job", "")]
    assert running not in str(why)


async def test_a_brief_why_says_what_blocks_it_and_looks_no_further(hub: RunningHub, api: Api) -> None:
    _, waiting = await busy(hub, api)
    why = await api.get(f"/v1/jobs/{waiting}/why?brief=1")
    assert why["summary"].startswith("waits for room")
    assert (why["change"], why["estimate"], why["holders"]) == (None, None, [])


async def test_why_of_a_job_whose_machine_was_lost_says_so_first(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker("box")
    job = await api.submit()
    await worker.take(job)
    await worker.drop()
    await hub.pass_time(600)
    assert await api.state(job) == "pending"
    summary = (await api.why(job))["summary"]
    assert summary.startswith("box did not come back within") and "box is offline" in summary


async def test_why_of_a_task_of_an_array_is_of_that_task_alone(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker("box", slots=2)
    job = await api.submit(array=4, min_cpu_cores=1)
    first, second = await worker.take_all(f"{job}.0", f"{job}.1")
    await worker.end(first, "failed", exit_code=3)
    third = await worker.take(f"{job}.2")
    assert (await api.why(f"{job}.0"))["summary"].startswith("failed")
    assert (await api.why(f"{job}.1"))["summary"].startswith(f"{second.task_id} is running on box")
    for why in (await api.why(f"{job}.3"), await api.get(f"/v1/jobs/{job}.3/why?brief=1")):
        assert (why["state"], why["summary"]) == ("pending", "waits for room: needs a batch slot; box has 0 free of 2")
    assert (await api.why(job))["summary"].startswith(f"{second.task_id} is running on box")
    assert third.task_id in (await api.why(job))["summary"]


async def test_an_estimate_has_a_band_and_follows_what_happens(hub: RunningHub, api: Api) -> None:
    running, waiting = await busy(hub, api)
    later = await api.submit(gpu_count=1)
    first, second = [await api.get(f"/v1/jobs/{job}/estimate") for job in (waiting, later)]
    assert first["start"]["likely"] < second["start"]["likely"]
    assert (await api.get(f"/v1/jobs/{running}/estimate"))["end"]["likely"]
    never = await api.get(f"/v1/jobs/{await api.submit(gpu_count=9)}/estimate")
    assert never["never"] and never["words"] == "never, as things are"


async def test_a_list_shows_what_was_foreseen_when_somebody_asked(hub: RunningHub, api: Api) -> None:
    running, waiting = await busy(hub, api)
    assert all("expected" not in job for job in (await api.get("/v1/jobs"))["jobs"])
    await api.get(f"/v1/jobs/{waiting}/estimate")
    listed = {job["id"]: job for job in (await api.get("/v1/jobs"))["jobs"]}
    assert listed[waiting]["expected"]["start"]["likely"]
    assert "expected" not in listed[running]


async def test_a_job_that_came_after_the_last_forecast_has_one_of_its_own(hub: RunningHub, api: Api) -> None:
    _, waiting = await busy(hub, api)
    first = await api.get(f"/v1/jobs/{waiting}/estimate")
    for _ in range(3):
        later = await api.get(f"/v1/jobs/{await api.submit(gpu_count=1)}/estimate")
        assert later["start"]["likely"] > first["start"]["likely"]
        first = later


async def test_what_changes_between_two_questions_changes_the_answer(hub: RunningHub, api: Api) -> None:
    await hub.worker("box")
    await api.post("/v1/workers/box/drain")
    job = await api.submit(min_cpu_cores=1)
    assert (await api.why(job))["change"] == "resume box"
    await hub.worker("other", cpu_count=0.5)
    assert (await api.why(job))["change"] == "ask for 0.5 cores instead of 1 (on other)"


async def test_many_who_ask_the_same_at_once_cost_a_few_copies_and_are_answered_alike(
    hub: RunningHub, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, waiting = await busy(hub, api)
    made = []

    class Counted(Copy):
        def __init__(self, work: Work, cpu_s: int) -> None:
            made.append(cpu_s)
            super().__init__(work, cpu_s)

    monkeypatch.setattr(foresight, "Copy", Counted)
    answers = await asyncio.gather(*[api.why(waiting) for _ in range(40)])
    assert all(answer["changes"] == answers[0]["changes"] for answer in answers)
    assert len(made) < 10


async def test_many_who_ask_what_if_at_once_wait_for_their_turn(
    hub: RunningHub, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await busy(hub, api)
    at_work: set[Copy] = set()
    most = 0

    class Counted(Copy):
        def __init__(self, work: Work, cpu_s: int) -> None:
            nonlocal most
            super().__init__(work, cpu_s)
            at_work.add(self)
            most = max(most, len(at_work))

        def close(self) -> None:
            at_work.discard(self)
            super().close()

    monkeypatch.setattr(foresight, "Copy", Counted)
    question = {"spec": {"gpu_count": 1}, "add_workers": [{"like": "box"}]}
    answers = await asyncio.gather(*[api.post("/v1/whatif", question) for _ in range(20)])
    assert len({answer["job"] for answer in answers}) == 20
    assert most <= 4 * whatif.AT_ONCE


async def test_a_forecast_that_is_stopped_at_once_leaves_no_copy() -> None:
    closed = asyncio.Event()

    class Closing(Copy):
        def close(self) -> None:
            super().close()
            closed.set()

    forecast = foresight.Forecast(Closing(lambda send: send(b""), 5), Fleet(str), 0.0)
    forecast.stop()
    await asyncio.wait_for(closed.wait(), 60)
    assert forecast.over


async def test_what_if_a_job_were_submitted_says_when_it_would_start_and_submits_nothing(
    hub: RunningHub, api: Api
) -> None:
    _, waiting = await busy(hub, api)
    before = await everything(api)
    found = await api.post("/v1/whatif", {"spec": {"gpu_count": 1, "priority": 3}, **PATIENT})
    assert found["now"] is None
    assert found["then"]["start"]["likely"] and found["then"]["summary"].startswith("waits for room")
    assert [one["id"] for one in found["later"]["jobs"]] == [waiting]
    assert await everything(api) == before


@pytest.mark.parametrize(
    "question",
    [
        {"changes": {"gpu_count": 0}},
        {"add_workers": [{"like": "box"}]},
        {"add_workers": [{"capabilities": {"gpu_backend": "nvidia", "gpu_count": 1}, "slots": 2, "count": 3}]},
        {"resume": ["closed"]},
    ],
)
async def test_what_if_something_were_otherwise_the_job_would_start_earlier(
    hub: RunningHub, api: Api, question: Document
) -> None:
    await hub.worker("closed", gpu_count=1)
    await api.post("/v1/workers/closed/drain")
    _, waiting = await busy(hub, api)
    before = await everything(api)
    found = await api.post("/v1/whatif", {"job_id": waiting, **question, **PATIENT})
    assert found["then"]["start"]["likely"] < found["now"]["start"]["likely"]
    assert "words" in found["then"]
    assert await everything(api) == before


async def test_what_if_a_worker_were_drained_or_removed_nothing_would_start(hub: RunningHub, api: Api) -> None:
    _, waiting = await busy(hub, api)
    for question in ({"drain": ["box"]}, {"remove_workers": ["box"]}):
        found = await api.post("/v1/whatif", {"job_id": waiting, **question, **PATIENT})
        assert found["then"].get("never") and found["now"]["start"]["likely"]
        others = await api.post("/v1/whatif", {**question, **PATIENT})
        (one,) = others["later"]["jobs"]
        assert (others["compared"], others["later"]["count"], others["earlier"]["count"]) == (1, 1, 0)
        assert (one["id"], one["by_s"], one["then"]) == (waiting, None, None) and one["now"]


async def test_what_if_something_waited_for_a_job_that_has_succeeded_it_would_begin(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker("box")
    done = await api.submit()
    await worker.end(await worker.take(done))
    found = await api.post("/v1/whatif", {"spec": {"depends_on": [done]}, **PATIENT})
    assert found["then"]["start"]["likely"] and "is assigned on box" in found["then"]["summary"]
    wrong = await api.call("POST", "/v1/whatif", json={"spec": {"depends_on": ["nobody"]}})
    assert "there is no job nobody" in wrong.problem(422)["detail"]


async def test_what_if_a_machine_came_what_could_never_begin_would(hub: RunningHub, api: Api) -> None:
    _, waiting = await busy(hub, api)
    large = await api.submit(gpu_count=4)
    machine = {"capabilities": {"gpu_backend": "nvidia", "gpu_count": 4}, "slots": 4}
    found = await api.post("/v1/whatif", {"add_workers": [machine], **PATIENT})
    jobs = {one["id"]: one for one in found["earlier"]["jobs"]}
    assert jobs.keys() == {waiting, large}
    assert (jobs[large]["now"], jobs[large]["by_s"]) == (None, None) and jobs[large]["then"]


async def test_both_sides_of_what_if_begin_now_however_quiet_it_was(hub: RunningHub, api: Api) -> None:
    _, waiting, worker = await busy_worker(hub, api)
    await api.get(f"/v1/jobs/{waiting}/estimate")
    await hub.pass_time(7200, beating=[worker])
    found = await api.post("/v1/whatif", {"add_workers": [{"like": "box"}], **PATIENT})
    assert (found["earlier"]["count"], found["later"]["count"]) == (1, 0)


async def test_what_should_have_ended_and_has_not_moves_the_estimates_though_nothing_happens(
    hub: RunningHub, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foresight, "QUIET_S", 0.0)
    _, waiting, worker = await busy_worker(hub, api)
    first = later = (await api.get(f"/v1/jobs/{waiting}/estimate"))["start"]["likely"]
    await hub.pass_time(7200, beating=[worker])
    async with asyncio.timeout(PATIENT_S):
        while later <= first:  # what was costly to find out is good for a moment longer
            later = (await api.get(f"/v1/jobs/{waiting}/estimate"))["start"]["likely"]


async def test_what_if_a_job_had_another_priority_moves_the_others(hub: RunningHub, api: Api) -> None:
    _, first = await busy(hub, api)
    second = await api.submit(gpu_count=1)
    found = await api.post("/v1/whatif", {"job_id": second, "priority": 7, **PATIENT})
    assert found["then"]["start"]["likely"] < found["now"]["start"]["likely"]
    assert (found["later"]["count"], found["later"]["jobs"][0]["id"]) == (1, first)
    assert (await api.job(second))["spec"].get("priority", 0) == 0


async def test_what_if_with_another_policy(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker("box", gpu_count=2)
    await worker.take(await api.submit(gpu_count=2))
    await api.submit(gpu_count=9)
    small = await api.submit(gpu_count=1)
    found = await api.post("/v1/whatif", {"job_id": small, "policy": {"head_blocks": True}, **PATIENT})
    assert found["now"]["start"]["likely"] and found["then"].get("never")


@pytest.mark.parametrize(
    ("question", "status", "words"),
    [
        ({}, 422, "nothing would be different"),
        ({"speck": 1}, 422, "speck"),
        ({"spec": {"gpus": 1}}, 422, "gpus"),
        ({"spec": {}, "job_id": "x"}, 422, "not both"),
        ({"changes": {"gpu_count": 1}}, 422, "of which job"),
        ({"job_id": "nobody", "priority": 1}, 404, "nobody"),
        ({"drain": ["nobody"]}, 404, "nobody"),
        ({"add_workers": [{"like": "nobody"}]}, 404, "nobody"),
        ({"add_workers": [{}]}, 422, "like or capabilities"),
        ({"add_workers": [{"like": "box", "count": 100_000}]}, 422, "count"),
        ({"spec": [1]}, 422, "object"),
        ({"job_id": "running", "priority": 1}, 422, "does not wait"),
        ({"drain": ["box"], "within_s": 1e9}, 422, "within_s"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused_with_its_reason(
    hub: RunningHub, api: Api, question: Document, status: int, words: str
) -> None:
    worker = await hub.worker("box")
    await worker.take(await api.submit(id="running"))
    answer = await api.call("POST", "/v1/whatif", json=question)
    assert words in answer.problem(status)["detail"]


async def test_another_users_job_cannot_be_asked_about(hub: RunningHub, api: Api) -> None:
    _, waiting = await busy(hub, api)
    ann = await hub.user("ann")
    (await ann.call("POST", "/v1/whatif", json={"job_id": waiting, "priority": 1})).problem(404)
    (await ann.call("GET", f"/v1/jobs/{waiting}/estimate")).problem(404)
    found = await ann.post("/v1/whatif", {"add_workers": [{"like": "box"}]})
    assert found["earlier"]["count"] == 1 and found["earlier"]["jobs"] == []


async def everything(api: Api) -> list[Any]:
    """All that the hub knows, but for what passes by itself."""
    workers = (await api.get("/v1/workers"))["workers"]
    events = [row["seq"] for job in (await api.get("/v1/jobs"))["jobs"] for row in await _events(api, job["id"])]
    jobs = [{**job, "expected": None} for job in (await api.get("/v1/jobs"))["jobs"]]
    return [jobs, [(one["id"], one["draining"], one["tasks"]) for one in workers], events]


async def _events(api: Api, job_id: str) -> list[Document]:
    found: list[Document] = (await api.get(f"/v1/jobs/{job_id}/events"))["events"]
    return found


# Quotas


async def under_quotas(hub: RunningHub, **quota: int) -> Api:
    """The hub started again with a quota for everybody, and its operator."""
    hub.settings = Settings(quotas=Quotas(default=Quota(**quota)))
    await hub.restart()
    return hub.api


async def test_a_job_beyond_its_quota_says_wherever_its_reason_is_shown_that_it_never_starts(hub: RunningHub) -> None:
    api = await under_quotas(hub, running_gpus=2)
    job, other = await api.submit(gpu_count=3), await api.submit(gpu_count=2)
    told = "it can never start: it needs 3 GPUs, and the quota running_gpus of admin is 2"
    assert (await api.job(job))["reason"] == (await api.why(job))["summary"] == told
    listed = {found["id"]: found["reason"] for found in (await api.get("/v1/jobs"))["jobs"]}
    assert listed == {job: told, other: ""}


async def test_why_of_an_array_that_a_quota_holds_names_the_quota(hub: RunningHub) -> None:
    api = await under_quotas(hub, running_jobs=1)
    worker = await hub.worker(slots=4)
    job = await api.submit(array=3)
    await worker.take(f"{job}.0")
    why = await api.why(job)
    assert why["summary"].endswith("2 of its tasks wait: held by a quota: admin has 1 of 1 running_jobs")
    assert (why["state"], why["dominant"]) == ("running", "quota")
    assert why["change"] == "raise the quota running_jobs of admin from 1 to 2"
    assert (await api.why(f"{job}.1"))["summary"] == "held by a quota: admin has 1 of 1 running_jobs"
