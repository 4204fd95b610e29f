"""A real systemd for one test: a user's instance, in namespaces of its own, where nothing but the test's own folder can
be written and no unit is known but those of the test."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MANAGER = "/lib/systemd/systemd"
UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--cgroup", "--kill-child"]
# The folder is $1, the user's own runtime folder $2, systemd $3.
# Everything that is mounted is made read-only first, and that is tried out: systemd as it comes would empty /tmp.
_SETUP = r"""
set -eu
mount --make-rprivate /
mount -t proc proc /proc
for point in $(cut -d' ' -f5 /proc/self/mountinfo | sort -u); do
    case $point in /proc*|/sys*) ;; *) mount -o remount,bind,ro "$point" ;; esac
done
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
for place in / /tmp /var/tmp /etc /dev /run "$HOME"; do
    probe="$place/.ostler-probe"
    if (: > "$probe") 2>/dev/null; then rm "$probe"; echo "$place can be written"; exit 1; fi
done
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind "$1" "$1"
mount -o remount,bind,rw "$1"
mount -t tmpfs tmpfs /run
mkdir -p -m 0700 "$2"
mkdir -p /run/systemd/system
export HOME="$1/home" XDG_RUNTIME_DIR="$2" SYSTEMD_UNIT_PATH="$1/home/.config/systemd/user:$1/units"
"$3" --user --unit=default.target --log-target=console >"$1/systemd.log" 2>&1 &
until systemctl --user is-active --quiet default.target; do kill -0 $!; done
echo ready
wait
"""


class CannotStart(Exception):
    """This machine does not allow it, or something could have been written that is not the test's."""


class PrivateSystemd:
    def __init__(self, folder: Path, inside: int) -> None:
        self.home = folder / "home"
        self.state = folder / "state"
        self._inside = inside
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "XDG_"))},
            "HOME": str(self.home),
            "TMPDIR": str(folder / "tmp"),
            "XDG_RUNTIME_DIR": _runtime_folder(),
            "OSTLER_STATE_DIR": str(self.state),
        }

    def run(self, *command: str, **more: Any) -> "subprocess.CompletedProcess[str]":
        enter = ["nsenter", "--target", str(self._inside), "--mount", "--pid", "--cgroup", "--"]
        options = {"capture_output": True, "text": True, "timeout": 90, "env": self.environment, **more}
        return subprocess.run([*enter, *command], **options)

    def control(self, *words: str) -> str:
        done = self.run("systemctl", "--user", *words)
        assert done.returncode == 0, done.stderr
        return str(done.stdout).strip()

    def unit(self, name: str) -> Path:
        return self.home / ".config" / "systemd" / "user" / f"{name}.service"

    def main_pid(self, name: str) -> str:
        """As it is counted inside."""
        return self.control("show", "--property=MainPID", "--value", name)


def why_not() -> str:
    """Why there can be no systemd of the test's own here; empty: there can."""
    if sys.platform != "linux" or not Path(MANAGER).exists():
        return "systemd is missing: apt-get install systemd"
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("unshare", "nsenter", "mount", "systemctl")):
        return "only root can make namespaces for systemd"
    if _control_groups() is None:
        return "there are no control groups of version 2"
    return ""


@contextmanager
def private_systemd(folder: Path) -> Iterator[PrivateSystemd]:
    for name in ("home/.config/systemd/user", "units", "tmp"):
        (folder / name).mkdir(parents=True)
    for target in ("default", "basic", "shutdown", "sysinit", "sockets", "timers", "paths"):
        (folder / "units" / f"{target}.target").write_text("[Unit]\nDescription=of the test\n")
    group = _control_groups()
    assert group is not None
    own = group / f"ostler-test-{os.getpid()}-{folder.name}"
    own.mkdir()
    script = 'echo $$ > "$0/cgroup.procs"; exec "$@"'
    setup = ["sh", "-c", _SETUP, "sh", str(folder), _runtime_folder(), MANAGER]
    outer = subprocess.Popen(
        ["sh", "-c", script, str(own), *UNSHARE, *setup], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        _await_word(outer, "ready\n")
        inside = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0]
        yield PrivateSystemd(folder, int(inside))
    finally:
        outer.kill()
        outer.wait()
        _remove(own)


def _await_word(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        if line == word:
            return
        said.append(line)
    raise CannotStart(f"systemd cannot be kept apart here: {''.join(said).strip()}")


def _control_groups() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] == "cgroup2" and os.access(before.split()[4], os.W_OK):
            return Path(before.split()[4])
    return None


def _runtime_folder() -> str:
    return f"/run/user/{os.geteuid()}"


def _remove(group: Path) -> None:
    """A group can be removed when its last process has been reaped, which is a moment after it was killed."""
    give_up_at = time.monotonic() + 10
    while group.exists() and time.monotonic() < give_up_at:
        for folder, _, _ in os.walk(group, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                time.sleep(0.01)
