"""A PostgreSQL server for the tests of one process: its own files, reached by a Unix socket alone, gone when the process is."""

import os
import pwd
import shutil
import subprocess
import time
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from ostler.ledger.postgres import PostgresLedger

STARTS_WITHIN_S = 60.0
NEEDED_BYTES = 2 * 1024**3
SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "min_wal_size": "2MB",
    "max_wal_size": "32MB",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}
# Standard input is a pipe from the tests' process: it ends when that does, however it does.
_WATCHED = 'folder=$1; shift; "$@" & server=$!; cat > /dev/null; kill -QUIT $server; wait $server; rm -rf "$folder"'
# Faster than TRUNCATE, which makes new files.
_EMPTY = b"""
    DO $$ DECLARE name TEXT; BEGIN
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public'
            AND tablename NOT IN ('ostler_migrations', 'leadership')
        LOOP EXECUTE format('DELETE FROM %I', name); END LOOP;
        UPDATE leadership SET until = '-infinity';
    END $$
"""


class Server:
    def __init__(self, programs: Path, folder: str = "", **settings: str) -> None:
        self.programs = programs
        self._settings = SETTINGS | settings
        self.folder = Path(mkdtemp(prefix="ostler-pg-", dir=folder or _fast_folder()))
        self._numbers = count(1)
        self._shared = ""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:  # which PostgreSQL refuses to run as
            owner = _unprivileged()
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self._as = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        self.folder.chmod(0o755)
        self._run(
            "initdb",
            "--username=ostler",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--wal-segsize=1",
        )
        with (self.data / "pg_hba.conf").open("r+") as rules:
            others = rules.read()
            rules.seek(0)
            rules.write(f"local all guarded scram-sha-256\nlocal all barred reject\n{others}")
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def _run(self, program: str, *arguments: str) -> None:
        command = [self.programs / program, "-D", self.data, *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, **self._as)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        command = [self.programs / "postgres", "-D", self.data, "-k", self.folder, *options]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                ["sh", "-c", _WATCHED, "sh", self.folder, *command],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                **self._as,
            )
        self._processes.append(process)
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                return self.execute("SELECT 1")
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.01)

    def crash(self) -> None:
        """As if the machine had lost its power, except that what was written to the disk is written."""
        self._run("pg_ctl", "stop", "--mode=immediate", "--wait")

    def url(self, database: str = "postgres", user: str = "ostler") -> str:
        return f"postgresql:///{database}?host={quote(str(self.folder), safe='')}&user={user}"

    def execute(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self.url(database), autocommit=True) as db:
            db.execute(statement.encode())

    def new_database(self) -> str:
        """The address of an empty one."""
        name = f"ledger_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def emptied(self) -> str:
        """The address of the one that many tests use after each other, with its tables and nothing in them."""
        if self._shared:
            with psycopg.connect(self._shared, autocommit=True) as db:
                db.execute(_EMPTY)
        else:
            self._shared = self.new_database()
            PostgresLedger(self._shared).close()
        return self._shared


def _fast_folder() -> str:
    """In memory, where there is room: a crash of the server can be tried there as well. The socket's path stays short."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > NEEDED_BYTES else "/tmp"


def _unprivileged() -> pwd.struct_passwd:
    there = {entry.pw_name: entry for entry in pwd.getpwall()}
    return there.get("postgres") or there["nobody"]


def installed() -> Path | None:
    """Debian keeps them out of the way, by version."""
    found = shutil.which("initdb")
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return Path(found).parent if found else versions[-1].parent if versions else None


@cache
def _server() -> Server | None:
    programs = installed()
    return Server(programs) if programs else None


def server() -> Server:
    """The one of this process; skips the test where none is installed."""
    found = _server()
    if found is None:
        pytest.skip("PostgreSQL is missing: apt-get install postgresql")
    return found
