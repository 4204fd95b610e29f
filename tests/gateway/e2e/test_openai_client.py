"""OpenAI's own client, against three models that share one machine."""

from pathlib import Path

import openai
import pytest
from tests.gateway.e2e.running_gateway import API_KEY, model, running_gateway

HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("scheduler", ["serial", "fifo"])
async def test_the_official_client_calls_and_streams_three_models_in_turn(tmp_path: Path, scheduler: str) -> None:
    async with running_gateway(tmp_path, [model("a"), model("b"), model("c")], scheduler=scheduler) as gateway:
        async with openai.AsyncOpenAI(base_url=f"{gateway.calls}/v1", api_key=API_KEY, max_retries=0) as client:
            assert {one.id async for one in client.models.list()} == {"a", "b", "c"}
            for name in ("a", "b", "c", "a"):
                whole = await client.chat.completions.create(model=name, messages=HELLO)  # type: ignore[arg-type]
                assert whole.choices[0].message.content == f"hello from {name}"
                assert whole.usage is not None and whole.usage.completion_tokens == 2
                stream = await client.chat.completions.create(model=name, messages=HELLO, stream=True)  # type: ignore[call-overload]
                pieces = [piece.choices[0].delta.content or "" async for piece in stream]
                assert "".join(pieces) == f"hello from {name}"
            with pytest.raises(openai.NotFoundError, match="there is no model 'nobody'"):
                await client.chat.completions.create(model="nobody", messages=HELLO)  # type: ignore[arg-type]
        wrong = openai.AsyncOpenAI(base_url=f"{gateway.calls}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            await wrong.models.list()
        await wrong.close()
        assert gateway.servers.loads() == 4
