"""Secrets on their whole way: set by a person, kept sealed, given to one task, covered in its log, gone with it."""

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process_fleet import ProcessFleet, process_fleet, until

QUIET, LOUD = b"canary-that-is-never-printed-7f3a", b"canary that is printed, 91+c/d%"
OF_MANY_LINES = b"-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\n-----END KEY-----\n"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("secrets"), "w") as made:
        for name, value in (("quiet", QUIET), ("loud", LOUD), ("key", OF_MANY_LINES)):
            told = made.check_run("secret", "set", name, input=value.decode()).stdout
            assert value.decode() not in told
        yield made


def ran(fleet: ProcessFleet, script: str, *secrets: str, state: str = "succeeded") -> tuple[str, dict[str, Any]]:
    spec = {"command": ["sh", "-c", script], "secrets": list(secrets), "max_attempts": 1}
    job = fleet.hub.submit(spec)["id"]
    found = until(lambda: (one := fleet.hub.job(job)) and one["finished_at"] and one, f"{job} ended")
    text = b"".join(fleet.hub.logs(job)).decode()
    assert found["state"] == state, (found["reason"], text)
    return text, found


def files_with(folder: Path, needle: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()]


def test_a_task_finds_them_as_files_of_its_own_and_as_variables_where_it_asks(fleet: ProcessFleet) -> None:
    script = 'sha256sum < "$OSTLER_SECRETS/quiet"; printf %s "$HF_TOKEN" | sha256sum; stat -c %a "$OSTLER_SECRETS" '
    text, _ = ran(
        fleet, script + '"$OSTLER_SECRETS/quiet"; ls "$OSTLER_SECRETS"; echo "$OSTLER_SECRETS"', "quiet:HF_TOKEN"
    )
    digest = f"{hashlib.sha256(QUIET).hexdigest()}  -"
    *first, where = text.splitlines()
    assert first == [digest, digest, "700", "600", "quiet"]
    until(lambda: not Path(where).exists(), "its folder is gone with it")


def test_they_are_nowhere_in_the_clear_while_the_task_runs_nor_after(fleet: ProcessFleet) -> None:
    job = fleet.hub.submit({"command": ["sh", "-c", "echo runs; exec sleep 600"], "secrets": ["quiet:HF_TOKEN"]})["id"]
    until(lambda: b"runs" in b"".join(fleet.hub.logs(job)), "it runs")
    commands = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdecimal()]
    for _ in ("while it runs", "afterwards"):
        for shape in (QUIET, base64.b64encode(QUIET), QUIET.hex().encode()):
            assert files_with(fleet.folder, shape) == []
            assert not [path for path in commands if path.exists() and shape in path.read_bytes()]
        shown = json.dumps([fleet.hub.job(job), fleet.hub.secrets(), fleet.hub.audit(), fleet.hub.job_events(job)])
        assert QUIET.decode() not in shown
        fleet.hub.cancel(job)
        until(lambda: fleet.hub.job(job)["finished_at"], "it ended")
    assert [row["action"] for row in fleet.hub.audit(object="secret/quiet")["rows"]] == ["secret.set"]


def test_what_a_task_prints_of_them_is_covered_in_every_shape_and_the_log_keeps_its_length(fleet: ProcessFleet) -> None:
    script = (
        'cat "$OSTLER_SECRETS/loud"; echo; base64 < "$OSTLER_SECRETS/loud"; '
        'for c in $(printf %s "$LOUD" | od -An -tx1); do :; done; echo "before $LOUD after"; '
        "python3 -c \"import os, urllib.parse as u; print(u.quote(os.environ['LOUD']), u.quote_plus(os.environ['LOUD']))\"; "
        'cat "$OSTLER_SECRETS/key"; echo "failed with $LOUD"; exit 3'
    )
    text, job = ran(fleet, script, "loud:LOUD", "key", state="failed")
    assert "canary" not in text
    assert "MIIEvQ" not in text
    assert base64.b64encode(LOUD).decode()[:12] not in text
    assert f"before {'*' * len(LOUD)} after" in text
    assert job["reason"].endswith(f"failed with {'*' * len(LOUD)}"), "the reason is made of the last line"


def test_a_secret_that_is_printed_in_two_pieces_while_somebody_reads_is_covered(fleet: ProcessFleet) -> None:
    script = 'printf "%s" "first $(printf %s "$LOUD" | head -c 9)"; read x < gate; printf %s "$LOUD" | tail -c +10; echo; echo end'
    spec = {"command": ["sh", "-c", f"mkfifo gate; echo $PWD; {script}"], "secrets": ["loud:LOUD"]}
    job = fleet.hub.submit(spec)["id"]
    stream = fleet.hub.logs(job, follow=True)
    seen = b""
    while b"first " not in seen:
        seen += next(stream)
    assert not seen.endswith(b"canary th")
    (Path(seen.split(b"\n")[0].decode()) / "gate").write_text("go\n")
    assert b"canary" not in seen + b"".join(stream)


def test_a_name_that_is_not_there_is_refused_at_once_and_one_that_went_meanwhile_at_the_start(
    fleet: ProcessFleet,
) -> None:
    refused = fleet.check_run("submit", "--secret", "nonsense", "--", "true", code=2)
    assert "there is no secret 'nonsense'" in refused.stderr
    fleet.check_run("secret", "set", "brief", input="for a moment")
    held = fleet.hub.submit({"command": ["sleep", "600"], "min_cpu_cores": 8})["id"]
    waits = fleet.hub.submit({"command": ["true"], "min_cpu_cores": 8, "secrets": ["brief"]})["id"]
    fleet.check_run("secret", "delete", "brief")
    fleet.hub.cancel(held)
    found = until(lambda: (one := fleet.hub.job(waits)) and one["finished_at"] and one, "it ended")
    assert (found["state"], found["reason"]) == ("failed", "the secret 'brief' is not there any more")


def test_a_worker_that_is_killed_still_covers_them_and_leaves_none_behind(fleet: ProcessFleet) -> None:
    spec = {"command": ["sh", "-c", 'echo "$OSTLER_SECRETS"; mkfifo gate; echo $PWD; read x < gate; echo "$LOUD"']}
    job = fleet.hub.submit({**spec, "secrets": ["loud:LOUD"]})["id"]
    lines = until(lambda: (seen := b"".join(fleet.hub.logs(job)).decode().splitlines())[1:] and seen, "it runs")
    fleet.kill("w")
    fleet.start_again("w")
    fleet.await_workers("w")
    (Path(lines[1]) / "gate").write_text("go\n")
    until(lambda: fleet.hub.job(job)["finished_at"], "it ended")
    assert b"".join(fleet.hub.logs(job)).decode().splitlines()[2] == "*" * len(LOUD)
    until(lambda: not Path(lines[0]).exists(), "its folder is gone with it")
