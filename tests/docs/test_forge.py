"""What a forge shows to people who report something: the forms follow their public schemas, and ask for what there is."""

import subprocess
import sys
from pathlib import Path

import pytest
from docs.generate.site import ROOT
from tests.docs.test_commands_in_pages import problem, typed

FORGE = ROOT / ".github"
FORMS = sorted(FORGE.glob("ISSUE_TEMPLATE/*.yml"))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_form_follows_its_public_schema(form: Path) -> None:
    schema = "vendor.github-issue-config" if form.name == "config.yml" else "vendor.github-issue-forms"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(form)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("form", [*FORMS, FORGE / "PULL_REQUEST_TEMPLATE.md"], ids=lambda form: form.name)
def test_every_command_that_a_form_asks_for_exists(form: Path) -> None:
    assert not [found for line in typed(form) if (found := problem(line))]
