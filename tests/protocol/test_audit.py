"""Who did what: one row for everything that is done, one for whoever is refused, and none can be changed unseen."""

from typing import Any

import apsw
import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub
from tests.protocol.test_enrol import enrol, newcomer, own_token, registered

from ostler.domain.audit import AuditRecord, Link, Verifier, parse_link
from ostler.domain.retention import DAY_S, Retention
from ostler.hub.audit import ACTIONS, MOST_REFUSALS, UNAUDITED
from ostler.hub.permissions import ROUTES
from ostler.ledger.sqlite_sound import connect

Document = dict[str, Any]


async def rows(api: Api, **query: Any) -> list[Document]:
    """Oldest first."""
    found: list[Document] = (await api.get("/v1/audit", params={"limit": 1000, **query}))["rows"]
    return found[::-1]


async def told(api: Api, **query: Any) -> list[tuple[str, str, str, str]]:
    return [(row["user"], row["action"], row["object"], row["outcome"]) for row in await rows(api, **query)]


async def verified(api: Api) -> Verifier:
    page = await api.get("/v1/audit", params={"limit": 1000})
    ends: list[Link | None] = [parse_link(page[end]) if page[end] else None for end in ("head", "anchor")]
    verifier = Verifier(*ends)
    for row in page["rows"]:
        verifier.add(AuditRecord(**row))
    verifier.end()
    return verifier


async def test_what_is_done_is_told_with_who_did_it_from_where_and_to_what(hub: RunningHub, api: Api) -> None:
    ann = await hub.user("ann")
    job = await ann.submit(name="mlp")
    await ann.cancel(job)
    await ann.requeue(job)
    await ann.cancel(job)
    await hub.worker("w")
    await api.post("/v1/workers/w/drain")
    found = await rows(api)
    assert [(row["user"], row["role"], row["action"], row["object"]) for row in found] == [
        ("hub", "", "hub.start", ""),
        ("admin", "operator", "token.create", found[1]["object"]),
        ("ann", "user", "job.submit", f"job/{job}"),
        ("ann", "user", "job.cancel", f"job/{job}"),
        ("ann", "user", "job.requeue", f"job/{job}"),
        ("ann", "user", "job.cancel", f"job/{job}"),
        ("admin", "operator", "worker.drain", "worker/w"),
    ]
    assert {row["outcome"] for row in found} == {"done"}
    assert {row["source"] for row in found[1:]} == {"127.0.0.1"}
    assert found[2]["actor"] == found[1]["object"].removeprefix("token/"), "the token's id"
    assert (await verified(api)).faults == []


async def test_what_the_core_refuses_and_what_a_caller_may_not_is_told_as_refused(hub: RunningHub, api: Api) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    await ann.submit(id="one")
    await ann.call("POST", "/v1/jobs", json={"command": ["false"], "id": "one"})
    (await bob.call("GET", "/v1/jobs/one")).problem(404)
    (await bob.call("POST", "/v1/workers/w/drain")).problem(403)
    (await hub.caller("wrong").call("GET", "/v1/status?token=in-the-query")).problem(401)
    assert (await told(api))[-4:] == [
        ("ann", "job.submit", "job/one", "refused"),
        ("bob", "refused", "GET /v1/jobs/one", "refused"),
        ("bob", "refused", "POST /v1/workers/w/drain", "refused"),
        ("", "refused", "GET /v1/status", "refused"),
    ]
    assert (await ann.call("POST", "/v1/jobs", json={"nonsense": 1})).status == 422
    assert len(await rows(api)) == 8, "what cannot be read changes nothing, and nobody was refused a right"


async def test_only_an_operator_reads_it_and_nobody_writes_it(hub: RunningHub, api: Api) -> None:
    for role in ("viewer", "user"):
        caller = await hub.user(role, role)
        (await caller.call("GET", "/v1/audit")).problem(403)
    assert (await api.call("POST", "/v1/audit", json={})).status == 405


async def test_it_is_read_page_by_page_and_by_who_what_and_when(hub: RunningHub, api: Api) -> None:
    ann = await hub.user("ann")
    first = await ann.submit()
    hub.clock.now += 100
    for _ in range(3):
        await ann.submit()
    page = await api.get("/v1/audit", params={"limit": 2, "actor": "ann"})
    rest = await api.get("/v1/audit", params={"limit": 2, "actor": "ann", "cursor": page["next"]})
    assert [row["seq"] for row in page["rows"] + rest["rows"]] == [6, 5, 4, 3]
    assert rest["next"] is None
    assert [row["seq"] for row in await rows(api, object=f"job/{first}")] == [3]
    assert [row["seq"] for row in await rows(api, since=hub.clock.wall() - 1)] == [4, 5, 6]
    (await api.call("GET", "/v1/audit?since=yesterday")).problem(422)


def test_every_route_that_may_change_something_is_told_of_or_says_why_not() -> None:
    changing = {key for key in ROUTES if key[0] not in ("GET", "HEAD", "SOCKET")}
    assert changing - ACTIONS.keys() - UNAUDITED.keys() == set()
    assert (ACTIONS.keys() | UNAUDITED.keys()) - changing == set()


async def test_machines_and_tokens_that_come_and_go_are_told_of_without_their_secrets(
    hub: RunningHub, api: Api
) -> None:
    enrolled = (await enrol(await newcomer(hub), "gpu-1")).json()
    await hub.caller(enrolled["token"]).post("/v1/leave")
    made = await api.post("/v1/tokens", {"role": "user", "user": "eve"}, 201)
    await api.call("DELETE", f"/v1/tokens/{made['id']}")
    found = await rows(api)
    assert [row["action"] for row in found[2:]] == ["worker.enrol", "worker.leave", "token.create", "token.revoke"]
    assert found[-1]["object"] == f"token/{made['id']}"
    assert made["token"] not in str(found)
    assert enrolled["token"] not in str(found)


async def test_a_browser_that_logs_in_is_told_of_by_whose_token_it_was(hub: RunningHub, api: Api) -> None:
    made = await api.post("/v1/tokens", {"role": "user", "user": "ann"}, 201)
    await hub.caller("").post("/v1/session", {"token": made["token"]})
    (await hub.caller("").call("POST", "/v1/session", json={"token": "wrong"})).problem(401)
    assert (await told(api))[-2:] == [
        ("ann", "session.open", "", "done"),
        ("", "refused", "POST /v1/session", "refused"),
    ]


async def test_a_machine_that_says_it_is_another_is_told_of(hub: RunningHub, api: Api) -> None:
    token = await own_token(hub, "gpu-1")
    assert not await registered(hub, token, "gpu-2")
    last = (await rows(api))[-1]
    assert (last["user"], last["role"], last["object"]) == ("gpu-1", "worker", "register gpu-2")
    assert last["outcome"] == "refused"


async def test_a_plan_changes_nothing_and_is_not_told_of(hub: RunningHub, api: Api) -> None:
    text = '[[run]]\nmodel = "m"\ncommand = ["true"]\n'
    before = len(await rows(api))
    answer = await api.call("PUT", "/v1/manifest?plan=1", data=text)
    assert answer.status in (200, 422), answer
    assert len(await rows(api)) == before


async def test_a_flood_of_refusals_is_a_few_rows(hub: RunningHub, api: Api) -> None:
    before = len(await rows(api))
    nobody = hub.caller("wrong")
    for number in range(30):
        await nobody.call("GET", f"/v1/jobs/{number}")
    audit = hub._hub.loop.audit
    for number in range(5 * MOST_REFUSALS):
        audit.refused(None, "GET /", "no token", source=f"10.0.{number // 256}.{number % 256}")
    found = (await rows(api))[before:]
    assert len(found) <= MOST_REFUSALS + 3
    assert "and 29 times more within a minute" in [row["detail"] for row in found]
    assert f"and {4 * MOST_REFUSALS} times more within a minute" in [row["detail"] for row in found]
    assert (await verified(api)).faults == []


async def test_one_who_tries_many_doors_hides_nobody_else(hub: RunningHub, api: Api) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    for number in range(40):
        await ann.call("POST", f"/v1/workers/w{number}/drain")
    await bob.call("POST", "/v1/workers/w/drain")
    found = [row for row in await rows(api) if row["outcome"] == "refused"]
    assert [row["user"] for row in found].count("ann") == 12, "ten, one for all others, and how many these were"
    assert "and 29 times more within a minute" in [row["detail"] for row in found]
    assert [row["object"] for row in found if row["user"] == "bob"] == ["POST /v1/workers/w/drain"]


async def test_what_others_call_things_stops_no_hub(hub: RunningHub, api: Api) -> None:
    hub._hub.loop.audit.refused(None, "GET /\udcff\0" + "x" * 10_000, "no \ud800 token", source="::1")
    found = (await rows(api))[-1]
    assert len(found["object"]) <= 200
    assert (await verified(api)).faults == []


async def test_the_chain_goes_on_after_a_restart(hub: RunningHub, api: Api) -> None:
    await api.submit()
    await hub.restart()
    await hub.api.submit()
    assert [row["seq"] for row in await rows(hub.api)] == [1, 2, 3, 4]
    assert (await verified(hub.api)).faults == []


TAMPERED = {
    "a row changed": ("UPDATE audit SET user = 'eve' WHERE seq = 3", 3),
    "a row taken out": ("DELETE FROM audit WHERE seq = 3", 3),
    "the tail cut off": ("DELETE FROM audit WHERE seq > 3", 4),
    "the tail cut off, and the note of it changed": (
        "DELETE FROM audit WHERE seq > 3; UPDATE kept SET value = CAST('3:' || "
        "(SELECT hash FROM audit WHERE seq = 3) AS BLOB) WHERE scope = 'audit' AND key = 'head'",
        None,
    ),
}


@pytest.mark.parametrize("how", TAMPERED)
async def test_a_ledger_that_was_tampered_with_is_found_out(hub: RunningHub, api: Api, how: str) -> None:
    for _ in range(5):
        await api.submit()
    noted = (await api.get("/v1/audit"))["head"]
    await hub.stop()
    statement, first = TAMPERED[how]
    db = connect(hub.state / "ostler.db", apsw.SQLITE_OPEN_READWRITE)
    db.execute(f"DROP TRIGGER audit_stays; {statement}")
    db.close()
    await hub.start()
    fault = (await verified(hub.api)).first_fault
    if first is not None:
        assert fault is not None and fault[0] == first
    else:
        # Whoever can change all of the ledger leaves it whole; only a head that was noted elsewhere tells.
        link = parse_link(noted)
        assert link is not None
        assert link.hash not in [row["hash"] for row in await rows(hub.api)]


async def test_a_row_cannot_be_changed_by_a_statement_alone(hub: RunningHub, api: Api) -> None:
    await hub.stop()
    db = connect(hub.state / "ostler.db", apsw.SQLITE_OPEN_READWRITE)
    with pytest.raises(apsw.ConstraintError, match="never changed"):
        db.execute("UPDATE audit SET user = 'eve'")
    db.close()
    await hub.start()


async def test_what_is_old_goes_and_the_chain_still_holds(hub: RunningHub, api: Api) -> None:
    hub.settings.retention = Retention(audit=10 * DAY_S)
    await hub.restart()
    for _ in range(4):
        await hub.api.submit()
    hub.clock.now += 12 * DAY_S
    await hub.restart()
    await hub.api.submit()
    before = await rows(hub.api)
    await hub._hub.keeper.sweep()
    after = await rows(hub.api)
    assert [row["action"] for row in after] == ["hub.start", "job.submit", "audit.prune"]
    assert after[0]["seq"] == before[-2]["seq"]
    assert (await verified(hub.api)).faults == []
    await hub._hub.keeper.sweep()
    assert len(await rows(hub.api)) == 3, "nothing more to remove, nothing more to tell"


async def test_a_submission_that_is_sent_again_is_told_of_the_job_that_it_made_before(
    hub: RunningHub, api: Api
) -> None:
    made = [
        (await api.call("POST", "/v1/jobs", json={"command": ["true"]}, headers={"Idempotency-Key": "k"})).json()["id"]
        for _ in range(2)
    ]
    assert made[0] == made[1]
    assert [row["object"] for row in await rows(api)][-2:] == [f"job/{made[0]}"] * 2


async def test_whom_a_hub_refused_just_before_it_stopped_is_told_of(hub: RunningHub, api: Api) -> None:
    before = len(await rows(api))
    nobody = hub.caller("wrong")
    for _ in range(3):
        await nobody.call("GET", "/v1/status")
    await hub.restart()
    found = (await rows(hub.api))[before:]
    assert [row["detail"] for row in found if row["action"] == "refused"][1:] == ["and 2 times more within a minute"]
    assert (await verified(hub.api)).faults == []
