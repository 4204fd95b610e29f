"""Models on other machines, and on other gateways."""

from pathlib import Path

import pytest
from tests.gateway.e2e.rig import CHAT, model, rig

from ostler.hub.gateway import processes


async def test_a_model_on_another_machine_is_called_and_streams_through_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOOPBACK", ())
    async with rig(tmp_path, [model("a"), model("b")], scheduler="fifo") as yard:
        answers = await yard.answered(*(yard.call("a", str(number)) for number in range(5)))
        assert {answer.text for answer in answers} == {"hello from a"}
        instance = yard.gateway.instances.current["a"]
        assert instance.bridge is not None
        assert instance.port != yard.hub.loop.fleet.held[instance.attempt].port
        async with yard.stream("a", "s") as answer:
            held = await yard.stage.asked("s")
            held.say("piece by piece")
            assert b"piece by piece" in await answer.content.readline()
            held.end()
            assert b"[DONE]" in await answer.content.read()
        answer = await yard.stream("a", "left")
        held = await yard.stage.asked("left")
        answer.close()
        await yard.stage.left(held)
        assert (await yard.answered(yard.call("b", "1")))[0].status == 200


async def test_the_models_of_a_peer_are_called_there(tmp_path: Path) -> None:
    async with rig(tmp_path / "theirs", [model("far", check="none")], scheduler="fifo") as theirs:
        await theirs.answered(theirs.call("far", "warm"))
        port = theirs.gateway.instances.current["far"].port
        peers = {
            "plain": {"url": f"http://127.0.0.1:{port}", "models": ["far"]},
            "secret": {"url": "https://example.test", "models": ["closed"]},
        }
        async with rig(tmp_path / "ours", [model("a")], workers=False, peers=peers) as ours:
            answer = await ours.ask("POST", CHAT, {"model": "plain/far", "messages": []})
            assert (answer.status, answer.text) == (200, "hello from far")
            refused = await ours.ask("POST", CHAT, {"model": "secret/closed", "messages": []})
            assert (refused.status, refused.code) == (502, "peer_unreachable")
            assert "only http" in refused.message
