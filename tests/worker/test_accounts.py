"""As whom tasks run: what an operator may write, and what is refused with a word on what to do."""

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from ostler.domain.errors import BadInput
from ostler.worker import accounts
from ostler.worker.accounts import Account, Accounts, NoAccount, WorkerSettings, load, read

NOBODY = pwd.getpwnam("nobody")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs tasks as another user: run the tests as root")


@as_root
@pytest.mark.parametrize(
    ("text", "uid", "gid"),
    [
        ("nobody", NOBODY.pw_uid, NOBODY.pw_gid),
        ("nobody:61000", NOBODY.pw_uid, 61_000),
        (str(NOBODY.pw_uid), NOBODY.pw_uid, NOBODY.pw_gid),
        ("61001:61002", 61_001, 61_002),
    ],
)
def test_a_user_is_named_or_numbered(text: str, uid: int, gid: int) -> None:
    found = read({"run_as": text}).accounts["*"]
    assert (found.uid, found.gid) == (uid, gid)


@as_root
@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"run_as": "root"}, "is root"),
        ({"run_as": "0:0"}, "is root"),
        ({"run_as": "61001:0"}, "is root"),
        ({"run_as": "4294967295:61001"}, "nobody that the kernel knows"),
        ({"run_as": "no-such-user-here"}, "there is no user 'no-such-user-here'"),
        ({"run_as": "61001"}, "there is no user '61001'"),
        ({"run_as": "nobody:no-such-group"}, "there is no group"),
        ({"run_as": {"ann": ""}}, "is no user"),
        ({"run_as": {"ann": 1001}}, "is no user"),
        ({"run_as": ["nobody"]}, "must be a user in quotes, or a table"),
        ({"tasks_dir": "relative"}, "begins with a slash"),
        ({"memory_limit": 0.5}, "from 1 to 100"),
        ({"memory_limit": True}, "from 1 to 100"),
        ({"run_us": "nobody"}, "unknown key 'run_us'"),
        ("nobody", "must be a table"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(table: Any, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        read(table)


def test_a_worker_that_is_not_root_says_so_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "can_change", lambda: False)
    with pytest.raises(BadInput, match="start it as root, or take run_as out"):
        read({"run_as": "nobody"})
    assert read({"memory_limit": 2}).memory_limit == 2.0, "the rest needs nobody"


def test_a_machine_without_such_a_file_or_table_runs_tasks_as_itself(tmp_path: Path) -> None:
    assert load(None) == WorkerSettings()
    file = tmp_path / "ostler.toml"
    file.write_text("[retention]\njobs = '1d'\n")
    assert load(file) == WorkerSettings()
    file.write_text("[worker\n")
    with pytest.raises(BadInput, match="is not TOML"):
        load(file)


def test_everybody_has_the_account_that_was_named_for_them_and_else_that_of_all_others(tmp_path: Path) -> None:
    ann, rest = Account("ann", 61_001, 61_001), Account("rest", 61_002, 61_002)
    chosen = Accounts({"ann": ann, "*": rest}, tmp_path)
    assert (chosen.of("ann"), chosen.of("bob"), chosen.of("")) == (ann, rest, rest)
    with pytest.raises(NoAccount, match="names nobody"):
        Accounts({"ann": ann}, tmp_path).of("bob")


def test_the_environment_is_that_users_and_not_the_workers_own(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    ann = Account("ann", os.geteuid(), os.getegid(), str(home))
    base = {
        "PATH": "/bin",
        "HOME": "/root",
        "USER": "root",
        "SSH_AUTH_SOCK": "/x",
        "XDG_RUNTIME_DIR": "/run/0",
        "MAIL": "m",
    }
    found = Accounts({"ann": ann}, tmp_path).environment(base, ann)
    assert found == {"PATH": "/bin", "HOME": str(home), "USER": "ann", "LOGNAME": "ann"}


@as_root
def test_a_folder_that_these_users_cannot_reach_is_refused_when_the_worker_starts(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    settings = WorkerSettings({"*": Account("x", 61_001, 61_001)}, str(closed / "tasks"))
    groups = os.getgroups()
    try:
        with pytest.raises(BadInput, match="cannot reach"):
            accounts.prepare(settings, tmp_path, "w", "/bin/sh")
    finally:
        os.setgroups(groups)
