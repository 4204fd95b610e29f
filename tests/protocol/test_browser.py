"""The hub as browsers meet it: names and origins, sessions, what a cookie alone cannot do, how often one may fail."""

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.protocol.api import Answer
from tests.protocol.hub import RunningHub
from tests.protocol.web import Relaying, Service, relaying, run_service, service_worker

from ostler.hub.settings import Settings
from ostler.hub.web.cookies import LASTS_S
from ostler.hub.web.limits import Limits
from ostler.hub.web.pages import Pages

CALLS = [("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("DELETE", "/v1/tokens/x"), ("GET", "/v1/health"), ("GET", "/")]
FOREIGN_HOSTS = ["evil.example", "evil.example:7600", "127.0.0.1.evil.example", "localhost.evil.example", "203.0.113.9"]
FOREIGN_ORIGINS = [
    "http://evil.example",
    "null",
    "http://127.0.0.1:1",
    "https://{host}",
    "file://",
    "http://{host}.evil",
]


class Browser:
    """One page of the hub's own: it has what the login gave it, and sends what browsers send."""

    def __init__(self, hub: RunningHub) -> None:
        self.api = hub.caller("")
        self.cookie = ""
        self.csrf = ""

    async def login(self, token: str, status: int = 200) -> Answer:
        answer = await self.api.call("POST", "/v1/session", json={"token": token})
        assert answer.status == status, answer
        if status == 200:
            self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
            self.csrf = answer.json()["csrf"]
        return answer

    async def call(self, method: str, path: str, csrf: str | None = None, **more: Any) -> Answer:
        headers = {"Cookie": self.cookie, "X-Ostler-CSRF": self.csrf if csrf is None else csrf}
        return await self.api.call(method, path, headers=headers | more.pop("headers", {}), **more)


@pytest.fixture
async def browser(hub: RunningHub) -> Browser:
    """The operator's."""
    found = Browser(hub)
    await found.login(hub.admin_token)
    return found


# Names and origins


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_a_name_that_is_not_the_hubs_is_answered_nothing(hub: RunningHub, host: str) -> None:
    for method, path in CALLS:
        (await hub.api.call(method, path, headers={"Host": host})).problem(403)
    assert await connect(hub, {"Host": host}) == 403


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
async def test_a_page_of_somebody_elses_is_answered_nothing(hub: RunningHub, origin: str) -> None:
    headers = {"Origin": origin.replace("{host}", hub.url.removeprefix("http://"))}
    for method, path in CALLS:
        (await hub.api.call(method, path, headers=headers)).problem(403)
    assert await connect(hub, headers) == 403


async def connect(hub: RunningHub, headers: dict[str, str]) -> int:
    """The status with which a socket is opened or refused, to whoever has a good token."""
    url = hub.url.replace("http", "ws", 1) + "/v1/ws/worker"
    try:
        async with hub.caller(hub.join_token).session.ws_connect(url, headers=headers):
            return 101
    except aiohttp.WSServerHandshakeError as refused:
        return refused.status


async def test_the_hubs_own_names_and_its_own_pages_are_answered(hub: RunningHub) -> None:
    port = hub.url.rpartition(":")[2]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST.", "[::1]:80", "127.8.9.10"):
        assert (await hub.api.call("GET", "/v1/jobs", headers={"Host": host})).status == 200, host
        own = {"Host": host, "Origin": f"http://{host}"}
        assert (await hub.api.call("GET", "/v1/jobs", headers=own)).status == 200, host
        assert await connect(hub, own) == 101


async def test_an_operator_may_give_the_hub_more_names(hub: RunningHub) -> None:
    hub.settings = Settings(hosts=["fleet.example", "https://front.example"])
    await hub.restart()

    async def status(host: str, origin: str = "") -> int:
        headers = {"Host": host} | ({"Origin": origin} if origin else {})
        return (await hub.api.call("GET", "/v1/jobs", headers=headers)).status

    assert await status("fleet.example:7600") == await status("front.example") == 200
    assert await status("front.example", "https://front.example") == 200
    assert await status("127.0.0.1", "https://front.example") == 200
    assert await status("fleet.example", "https://fleet.example") == 403
    assert await status("other.example") == 403


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["local host"], ["a@localhost"], ["localhost:x"]])
async def test_a_head_that_names_no_host_or_several_is_refused(hub: RunningHub, hosts: list[str]) -> None:
    import asyncio

    reader, writer = await asyncio.open_connection("127.0.0.1", int(hub.url.rpartition(":")[2]))
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    writer.write(f"GET /v1/me HTTP/1.1\r\n{lines}Authorization: Bearer {hub.admin_token}\r\n\r\n".encode())
    assert (await reader.readline()).split()[1] in (b"400", b"403")
    writer.close()


# Sessions


async def test_a_token_becomes_a_cookie_that_no_script_reads_and_no_other_site_sends(hub: RunningHub) -> None:
    ann = await hub.user("ann")
    answer = await Browser(hub).login(ann.token)
    name, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert name.startswith("ostler_session=")
    assert {"Path=/", "HttpOnly", "SameSite=Strict"} <= set(attributes) and "Secure" not in attributes
    assert ann.token not in str(answer.headers) and ann.token not in answer.body.decode()
    assert (answer.json()["role"], answer.json()["user"]) == ("user", "ann")


async def test_the_cookie_of_a_page_that_came_over_tls_is_never_sent_without(hub: RunningHub) -> None:
    hub.settings = Settings(hosts=["https://front.example"])
    await hub.restart()
    headers = {"Origin": "https://front.example"}
    answer = await hub.caller("").call("POST", "/v1/session", json={"token": hub.admin_token}, headers=headers)
    assert answer.status == 200 and "Secure" in answer.headers["Set-Cookie"].split("; ")


@pytest.mark.parametrize("body", ['{"token": "wrong"}', "{}", "", "[]", "null", '{"token": 1}', '{"token": "{join}"}'])
async def test_what_is_no_token_is_401_and_sets_no_cookie(hub: RunningHub, body: str) -> None:
    refused = 403 if "{join}" in body else 401
    answer = await hub.caller("").call("POST", "/v1/session", data=body.replace("{join}", hub.join_token))
    answer.problem(refused)
    assert "Set-Cookie" not in answer.headers


async def test_a_session_may_do_what_its_token_may(hub: RunningHub, browser: Browser) -> None:
    assert (await browser.call("POST", "/v1/jobs", json={"command": ["true"]})).status == 201
    assert len((await browser.call("GET", "/v1/jobs")).json()["jobs"]) == 1
    viewer = Browser(hub)
    await viewer.login((await hub.user("eve", "viewer")).token)
    assert (await viewer.call("GET", "/v1/jobs")).status == 200
    (await viewer.call("POST", "/v1/jobs", json={"command": ["true"]})).problem(403)


async def test_whose_session_it_is_can_be_asked(hub: RunningHub, browser: Browser) -> None:
    told = (await browser.call("GET", "/v1/session")).json()
    assert (told["role"], told["user"], told["csrf"]) == ("operator", "admin", browser.csrf)
    assert (await hub.api.get("/v1/session"))["csrf"] is None


@pytest.mark.parametrize("csrf", ["", "x", "{other}"])
async def test_a_cookie_alone_changes_nothing(hub: RunningHub, browser: Browser, csrf: str) -> None:
    other = Browser(hub)
    await other.login(hub.admin_token)
    said = csrf.replace("{other}", other.csrf)
    job = await hub.api.submit()
    for method, path in (
        ("POST", "/v1/jobs"),
        ("POST", f"/v1/jobs/{job}/cancel"),
        ("DELETE", "/v1/tokens/x"),
        ("PUT", "/v1/manifest"),
        ("PATCH", "/v1/jobs"),
        ("OPTIONS", "/v1/jobs"),
        ("DELETE", "/v1/session"),
        ("POST", "/services/web/x"),
    ):
        (await browser.call(method, path, csrf=said)).problem(403)
    assert await hub.api.state(job) == "pending"
    assert (await browser.call("GET", "/v1/jobs", csrf=said)).status == 200


async def test_a_socket_opens_with_a_cookie_only_for_a_page_that_says_where_it_is_from(
    hub: RunningHub, browser: Browser
) -> None:
    url = hub.url.replace("http", "ws", 1) + "/v1/ws/cli"
    for origin, status in (("", 403), ("http://evil.example", 403), (hub.url, 101)):
        headers = {"Cookie": browser.cookie} | ({"Origin": origin} if origin else {})
        try:
            async with browser.api.session.ws_connect(url, headers=headers):
                found = 101
        except aiohttp.WSServerHandshakeError as refused:
            found = refused.status
        assert found == status, origin


async def test_a_session_that_was_ended_is_over_also_for_a_hub_that_starts_again(
    hub: RunningHub, browser: Browser
) -> None:
    other = Browser(hub)
    await other.login(hub.admin_token)
    answer = await browser.call("DELETE", "/v1/session")
    assert answer.status == 204 and "Max-Age=0" in answer.headers["Set-Cookie"]
    (await browser.call("GET", "/v1/session")).problem(401)
    await hub.restart()
    for one, status in ((browser, 401), (other, 200)):
        one.api = hub.caller("")
        assert (await one.call("GET", "/v1/session")).status == status


async def test_a_session_ends_with_its_token_and_in_any_case_one_day(hub: RunningHub) -> None:
    async def session_of(**more: Any) -> tuple[Browser, str]:
        created = await hub.api.post("/v1/tokens", {"role": "user", "user": "ann", **more}, 201)
        found = Browser(hub)
        await found.login(created["token"])
        assert (await found.call("GET", "/v1/jobs")).status == 200
        return found, created["id"]

    revoked, token_id = await session_of()
    assert (await hub.api.call("DELETE", f"/v1/tokens/{token_id}")).status == 200
    revoked.api = hub.caller("")
    (await revoked.call("GET", "/v1/jobs")).problem(401)
    expired, _ = await session_of(expires_s=600)
    lasting, _ = await session_of()
    hub.clock.now += 601
    expired.api = hub.caller("")
    (await expired.call("GET", "/v1/jobs")).problem(401)
    assert (await lasting.call("GET", "/v1/jobs")).status == 200
    hub.clock.now += 12 * 3600
    (await lasting.call("GET", "/v1/jobs")).problem(401)


@pytest.mark.parametrize("how", ["it is ended", "its time is over"])
async def test_what_a_session_reads_for_as_long_as_it_lasts_ends_with_it(
    hub: RunningHub, browser: Browser, how: str
) -> None:
    other = Browser(hub)
    await other.login(hub.admin_token)
    feeds = [
        await one.api.session.get(hub.url + "/v1/events", headers={"Cookie": one.cookie}) for one in (browser, other)
    ]
    for feed in feeds:
        assert await feed.content.readline() == b": connected\n"
    if how == "it is ended":
        assert (await browser.call("DELETE", "/v1/session")).status == 204
    else:
        hub.clock.now += LASTS_S + 1
    assert await asyncio.wait_for(_rest(feeds[0]), 60) == b"\n"
    if how == "it is ended":
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_rest(feeds[1]), 0.1)


async def _rest(answer: aiohttp.ClientResponse) -> bytes:
    found = b""
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        while data := await answer.content.readany():
            found += data
    return found


async def test_a_token_that_is_about_to_expire_may_still_log_in(hub: RunningHub) -> None:
    for expires_s in (0.001, 0.5, 1.0):
        created = await hub.api.post("/v1/tokens", {"role": "user", "user": "ann", "expires_s": expires_s}, 201)
        found = Browser(hub)
        await found.login(created["token"])
        assert (await found.call("GET", "/v1/jobs")).status == 200


async def test_a_cookie_that_was_changed_in_any_place_opens_nothing(hub: RunningHub, browser: Browser) -> None:
    name, _, value = browser.cookie.partition("=")
    places = [*range(0, len(value), 7), len(value) - 1]
    forged = [value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :] for at in places]
    forged += ["", ".", "...", "admin.99999999999.x.", f"admin.99999999999.{value.rpartition('.')[2]}", "ä.1.2.3"]
    for one in forged:
        answer = await browser.api.call("GET", "/v1/jobs", headers={"Cookie": f"{name}={one}"})
        answer.problem(401)


async def test_a_token_that_is_wrong_is_not_made_good_by_a_cookie(hub: RunningHub, browser: Browser) -> None:
    (await browser.call("GET", "/v1/jobs", headers={"Authorization": "Bearer wrong"})).problem(401)
    assert (await browser.call("GET", "/v1/jobs", headers={"Authorization": "Basic of-a-proxy"})).status == 200


async def test_neither_the_ledger_nor_the_log_has_what_signs_a_session(hub: RunningHub, browser: Browser) -> None:
    key, value = (hub.state / "session.key").read_bytes().strip(), browser.cookie.partition("=")[2].encode()
    await browser.call("DELETE", "/v1/session")
    await hub.turn()
    for path in hub.state.rglob("*"):
        if path.is_file() and path.name != "session.key":
            assert key not in path.read_bytes() and value not in path.read_bytes(), path


# What is shown


async def test_the_first_page_runs_no_script_of_its_own_lines(hub: RunningHub) -> None:
    answer = await hub.caller("").call("GET", "/")
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/html")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy and "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Referrer-Policy"]
    assert not re.search(rb"<script(?![^>]*\ssrc=)|<style|\son\w+=", answer.body)


async def test_the_dashboards_files_are_for_anybody_and_nothing_beside_them(hub: RunningHub, tmp_path: Path) -> None:
    folder = tmp_path / "static"
    (folder / "assets" / "deep").mkdir(parents=True)
    (folder / "index.html").write_text("<p>it is there")
    (folder / "assets" / "app.js").write_text("run()")
    (folder / "assets" / "deep" / "a b.css").write_text("p {}")
    (folder / "assets" / "licences.txt").write_text("preact 11.2.0 (MIT)")
    (tmp_path / "secret").write_text("not for you")
    pages = Pages(folder)
    for route in hub._hub.app.routes:  # type: ignore[attr-defined]
        if route.path == "/":
            route.handler = pages.index
        elif route.path.startswith("/assets/"):
            route.handler = pages.asset
    nobody = hub.caller("")
    assert (await nobody.call("GET", "/")).body == b"<p>it is there"
    script = await nobody.call("GET", "/assets/app.js")
    assert (script.body, script.headers["Content-Type"]) == (b"run()", "text/javascript; charset=utf-8")
    assert "immutable" in script.headers["Cache-Control"]
    assert (await nobody.call("GET", "/assets/deep/a%20b.css")).body == b"p {}"
    licences = await nobody.call("GET", "/assets/licences.txt")
    assert licences.body == b"preact 11.2.0 (MIT)" and licences.headers["Cache-Control"] == "no-cache"
    assert licences.headers["Content-Type"] == "text/plain; charset=utf-8"
    for path in (
        "secret",
        "%2e%2e/secret",
        "..%2f..%2fsecret",
        "deep",
        "",
        "app.js/",
        "%00",
        "//etc/passwd",
        "app.js%00",
    ):
        answer = await nobody.call("GET", f"/assets/{path}")
        assert answer.status in (401, 404) and b"not for you" not in answer.body, path


async def test_what_a_session_reads_is_data_and_is_not_kept(hub: RunningHub, browser: Browser) -> None:
    answer = await browser.call("GET", "/v1/jobs")
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert (answer.headers["X-Content-Type-Options"], answer.headers["Cache-Control"]) == ("nosniff", "no-store")
    assert "Content-Security-Policy" not in (await hub.api.call("GET", "/v1/jobs")).headers


# Services


@pytest.fixture
async def web(hub: RunningHub) -> Any:
    service = Service()
    worker = await service_worker(hub)
    port = await service.start()
    await run_service(hub, worker)
    async with relaying(worker, port) as relays:
        yield relays
    await service.stop()


async def test_a_service_never_sees_the_session_and_its_pages_run_apart(browser: Browser, web: Relaying) -> None:
    cookies = f"{browser.cookie}; mine=1"
    answer = await browser.call("POST", "/services/web/x", headers={"Cookie": cookies})
    assert answer.status == 200
    seen = {name.lower(): value for name, value in answer.json()["headers"]}
    assert seen["cookie"] == "mine=1"
    assert browser.cookie.partition("=")[2] not in answer.body.decode() and browser.csrf not in answer.body.decode()
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox") and "allow-same-origin" not in policy


# How often


async def test_after_five_failed_logins_within_a_minute_an_address_has_to_wait(hub: RunningHub) -> None:
    stranger = Browser(hub)
    for _ in range(5):
        await stranger.login("wrong", 401)
    answer = await stranger.login(hub.admin_token, 429)
    answer.problem(429)
    assert 0 < int(answer.headers["Retry-After"]) <= 60
    assert (await hub.api.call("GET", "/v1/jobs")).status == 200


async def test_logins_that_fail_at_the_same_time_are_counted_like_those_that_fail_one_after_the_other(
    hub: RunningHub,
) -> None:
    where, body = int(hub.url.rpartition(":")[2]), b'{"token":"wrong"}'
    head = b"POST /v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    guesses = [await asyncio.open_connection("127.0.0.1", where) for _ in range(12)]
    for _, writer in guesses:
        writer.write(head)
    await hub.api.call("GET", "/v1/me")  # by now all of them wait for the rest
    for _, writer in guesses:
        writer.write(body)
    answers = sorted([(await reader.readline()).split()[1] for reader, _ in guesses])
    for _, writer in guesses:
        writer.close()
    assert answers == [b"401"] * 5 + [b"429"] * 7


async def test_an_address_that_a_caller_says_is_its_own_is_not_believed(hub: RunningHub) -> None:
    stranger = hub.caller("")
    answers = [
        await stranger.call(
            "POST", "/v1/session", json={"token": "wrong"}, headers={"X-Forwarded-For": f"203.0.113.{number}"}
        )
        for number in range(6)
    ]
    assert [answer.status for answer in answers] == [401] * 5 + [429]


async def test_who_asks_too_often_is_told_when_to_come_back_and_others_are_served(hub: RunningHub) -> None:
    hub.settings = Settings(limits=Limits(requests_per_s=1, burst=20))
    await hub.restart()
    ann = await hub.user("ann")
    answers = [await ann.call("GET", "/v1/me") for _ in range(40)]
    refused = [answer for answer in answers if answer.status == 429]
    assert len(refused) in range(10, 21) and {answer.status for answer in answers} == {200, 429}
    assert refused[0].problem(429) and int(refused[0].headers["Retry-After"]) >= 1
    assert (await hub.api.call("GET", "/v1/me")).status == 200
