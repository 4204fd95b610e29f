"""Folders that stand in for what a kernel shows of a machine."""

from pathlib import Path


def plant(root: Path, **files: str) -> Path:
    """Write these files, by path under the root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
