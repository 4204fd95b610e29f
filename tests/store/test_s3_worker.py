"""A worker that brings outputs to a hub whose store is a bucket, where something is in its way."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.protocol.hub import RunningHub
from tests.store.conftest import PART
from tests.store.s3_server import Server
from tests.store.sending import noise, sha256

from ostler.domain.hubs import Addresses
from ostler.store.bucket import Bucket, Client
from ostler.store.shelves import Shelves
from ostler.worker import direct
from ostler.worker.api import SMALL_BYTES, HubApi, Unreachable
from ostler.worker.credentials import Credentials
from ostler.worker.uploads import Traffic, Upload, bring

LARGE = noise(SMALL_BYTES + PART)


@pytest.fixture
async def hub(tmp_path: Path, client: Client) -> AsyncIterator[RunningHub]:
    running = RunningHub(tmp_path)
    running.shelves = Shelves(tmp_path, client.bucket)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def api(hub: RunningHub, tmp_path: Path) -> AsyncIterator[HubApi]:
    async with aiohttp.ClientSession() as session:
        yield HubApi(session, Addresses(hub.url), Credentials(tmp_path / "w", hub.url, hub.join_token))


def outputs(folder: Path, data: bytes) -> Upload:
    path = folder / "outputs.tar"
    path.write_bytes(data)
    return Upload(path=path, sha256=sha256(data), size=len(data))


async def stored(hub: RunningHub, upload: Upload) -> bytes:
    return (await hub.api.call("GET", f"/v1/model/{upload.sha256}")).body


async def test_what_another_brought_wrongly_under_the_same_name_fails_nobody(
    hub: RunningHub, api: HubApi, tmp_path: Path
) -> None:
    upload, garbage = outputs(tmp_path, LARGE), tmp_path / "garbage"
    garbage.write_bytes(noise(len(LARGE), seed=2))
    machine = hub.caller(hub.join_token)
    plan = await machine.post(f"/v1/model/{upload.sha256}/direct?size={upload.size}")
    for piece in plan["pieces"]:
        await direct.put(direct.Piece(**piece), garbage, lambda _: None)
    await bring(api, upload, Traffic())
    assert upload.whole and await stored(hub, upload) == LARGE


async def test_what_the_hub_could_not_bring_to_its_store_is_not_sent_to_it_again(
    hub: RunningHub, api: HubApi, server: Server, tmp_path: Path
) -> None:
    upload, traffic = outputs(tmp_path, LARGE[:SMALL_BYTES]), Sent()
    server.away = True
    for _ in range(2):
        with pytest.raises(Unreachable):
            await bring(api, upload, traffic)
    server.away = False
    await bring(api, upload, traffic)
    assert upload.whole and await stored(hub, upload) == LARGE[:SMALL_BYTES]
    assert traffic.bytes == upload.size


async def test_a_store_that_a_worker_cannot_reach_is_not_tried_again_for_each_file(
    tmp_path: Path, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    given = {name: getattr(client.bucket, name) for name in Bucket.__struct_fields__}
    running = RunningHub(tmp_path)
    running.shelves = Shelves(tmp_path, Bucket(**(given | {"public_endpoint": "http://127.0.0.1:1"})))
    await running.start()
    async with aiohttp.ClientSession() as session:
        api = HubApi(session, Addresses(running.url), Credentials(tmp_path / "w", running.url, running.join_token))
        with caplog.at_level("INFO", "ostler.worker"):
            for seed in range(3):
                upload = outputs(tmp_path, noise(SMALL_BYTES + 1, seed))
                await bring(api, upload, Traffic())
                assert upload.whole
    assert caplog.text.count("was not brought past the hub") <= direct.TRIES + 1
    await running.stop()


class Sent(Traffic):
    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def moved(self, count: int) -> None:
        self.bytes += count
