"""The reference in docs/manifest.md is true."""

import re
from pathlib import Path

from ostler.manifest import read
from ostler.manifest.keys import CAPABILITY_KEYS, HOST_KEYS, JOB_KEYS, SWEEP_KEYS

REFERENCE = (Path(__file__).resolve().parents[2] / "docs" / "manifest.md").read_text(encoding="utf-8")


def test_the_worked_example_is_a_manifest_and_gives_what_is_said_of_it() -> None:
    example = re.search(r"```toml\n(.*?)```", REFERENCE, re.DOTALL)
    assert example
    specs = read(example[1]).specs
    assert [spec.name for spec in specs] == [
        *("gbt-realistic", "mlp-0.1-64", "mlp-0.1-128", "mlp-0.01-64", "mlp-0.01-128"),
    ]
    said = "python -m trainer --model gbt --mode realistic --out $OSTLER_OUT --depth 6 --lr 0.1"
    assert specs[0].command == said.split()
    assert said.replace("$OSTLER_OUT", "…") in REFERENCE


def test_every_key_is_in_the_reference() -> None:
    told = set(re.findall(r"`([a-z_]+)`", REFERENCE)) | set(re.findall(r"`(grid|list) = ", REFERENCE))
    assert not (JOB_KEYS | SWEEP_KEYS | HOST_KEYS | CAPABILITY_KEYS).keys() - told
