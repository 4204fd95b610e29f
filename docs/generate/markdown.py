"""Small pieces of Markdown."""

from collections.abc import Iterable, Sequence

NOTE = "<!-- made from the code by `make reference`; change the code, or docs/generate, and run that -->\n"


def page(title: str, *parts: str) -> str:
    return f"# {title}\n\n{NOTE}\n" + "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(heads), "|" + "---|" * len(heads), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def code(text: object) -> str:
    """In backticks; nothing for nothing."""
    return f"`{text}`" if str(text) else ""


def shown(value: object) -> str:
    """A default as it would be written in JSON or TOML."""
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, str):
        return code(f'"{value}"')
    if isinstance(value, float) and value.is_integer():
        return code(int(value))
    if isinstance(value, tuple):
        return code(list(value))
    return "" if value is None else code(value)
