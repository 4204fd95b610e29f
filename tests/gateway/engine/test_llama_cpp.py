"""A real engine: three random llamas, served by llama.cpp's Python server, swapped on one machine.

`make engine` installs the engine (it is compiled: some minutes, once) and runs this.
"""

import os
import subprocess
from pathlib import Path

import openai
import pytest
from tests.gateway.e2e.running_gateway import API_KEY, Document, running_gateway

ENGINE = os.environ.get("OSTLER_TEST_ENGINE", "")
"""The Python that has llama_cpp and gguf."""
pytestmark = pytest.mark.skipif(not ENGINE, reason="`make engine` runs these")
NAMES = ("ada", "bob", "cyd")
ASKED = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    maker = Path(__file__).with_name("tiny_gguf.py")
    found = {name: folder / f"{name}.gguf" for name in NAMES}
    for seed, file in enumerate(found.values()):
        subprocess.run([ENGINE, str(maker), str(file), str(seed)], check=True)
    return found


def llama(file: Path) -> Document:
    cmd = [ENGINE, "-m", "llama_cpp.server", "--model", str(file), "--port", "${PORT}", "--n_ctx", "512"]
    return {"cmd": [*cmd, "--n_threads", "1"], "check": "/v1/models", "vram": "16g"}


@pytest.mark.parametrize("scheduler", ["serial", "fifo"])
async def test_three_random_llamas_take_turns_behind_the_official_client(
    tmp_path: Path, files: dict[str, Path], scheduler: str
) -> None:
    models = {name: llama(file) for name, file in files.items()}
    async with (
        running_gateway(tmp_path, models, scheduler=scheduler) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.calls}/v1", api_key=API_KEY, max_retries=0) as client,
    ):
        said = {}
        for name in (*NAMES, NAMES[0]):
            whole = await client.chat.completions.create(  # type: ignore[call-overload]
                model=name, messages=ASKED, max_tokens=24, temperature=0
            )
            text = whole.choices[0].message.content
            assert whole.usage.completion_tokens == 24 and len(text) == 24
            stream = await client.chat.completions.create(  # type: ignore[call-overload]
                model=name, messages=ASKED, max_tokens=24, temperature=0, stream=True
            )
            pieces = [piece.choices[0].delta.content or "" async for piece in stream]
            assert "".join(pieces) == text and len(pieces) > 12
            assert said.setdefault(name, text) == text
        assert len(set(said.values())) == len(NAMES)
        running = (await gateway.ask("GET", "/running")).json["running"]
        assert [one["model"] for one in running if one["state"] == "ready"] == [NAMES[0]]
