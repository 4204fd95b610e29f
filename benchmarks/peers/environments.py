"""An environment of its own for each peer, with the versions that requirements/ has pinned by their hashes."""

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WHERE = ROOT / ".venv-peers"
INSTALL_S = 600


class NotInstalled(Exception):
    """One sentence that says why."""


def interpreter(name: str) -> str:
    """The interpreter to run a peer's script with, after installing what it needs; ours where it needs nothing."""
    if not name:
        return sys.executable
    wanted = Path(__file__).parent / "requirements" / f"{name}.txt"
    folder = WHERE / name
    done, digest = folder / ".installed", hashlib.sha256(wanted.read_bytes()).hexdigest()
    python = folder / "bin" / "python"
    if not done.exists() or done.read_text() != digest:
        print(f"  installing {name}", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        _install(python, wanted)
        done.write_text(digest)
    return str(python)


def _install(python: Path, wanted: Path) -> None:
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--require-hashes", "-r"]
    try:
        tried = subprocess.run([*pip, str(wanted)], capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{wanted.stem} could not be installed within {INSTALL_S} s") from None
    if tried.returncode:
        raise NotInstalled(f"{wanted.stem} could not be installed: pip ended with {tried.returncode}")
