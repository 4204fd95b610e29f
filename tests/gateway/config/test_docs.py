"""The reference in docs/gateway-config.md is true."""

import re
from pathlib import Path

import pytest
from tests.gateway.config.reading import model, settings

from ostler.gateway.keys import CALLER_KEYS, GATEWAY_KEYS, GROUP_KEYS, MODEL_KEYS, PEER_KEYS

REFERENCE = (Path(__file__).resolve().parents[3] / "docs" / "gateway-config.md").read_text(encoding="utf-8")


def test_the_worked_example_is_a_configuration() -> None:
    example = re.search(r"```toml\n(.*?)```", REFERENCE, re.DOTALL)
    assert example
    found = settings(example[1])
    assert found.notes == []
    assert found.models["qwen2.5-7b"].command == (
        "llama-server --host 127.0.0.1 --port {port} -ngl 99 -m /models/qwen2.5-7b.gguf --ctx-size 32768".split()
    )


def test_every_key_is_in_the_reference() -> None:
    prose = re.sub(r"```.*?```", "", REFERENCE, flags=re.DOTALL)
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", prose, re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"[a-z_]+", row)} == MODEL_KEYS.keys() | GATEWAY_KEYS.keys()
    told = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", prose))))
    assert not (GROUP_KEYS.keys() | CALLER_KEYS.keys() | PEER_KEYS.keys()) - told


@pytest.mark.parametrize(
    ("key", "field"), [("check", "check"), ("load_timeout", "load_timeout_s"), ("on_client_abort", "on_client_abort")]
)
def test_what_is_said_of_a_key_that_is_left_out_is_so(key: str, field: str) -> None:
    row = re.search(rf"^\| `{key}` \| [^|]+ \| `\"?([^`\"]+)\"?` \|", REFERENCE, re.MULTILINE)
    assert row
    assert row[1] == f"{getattr(model(''), field):g}" if key == "load_timeout" else getattr(model(""), field)
