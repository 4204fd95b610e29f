"""The text field `model` of a multipart form, found while the form comes in, wherever among its parts it is."""

import re

MAX_HEAD_BYTES = 16 * 1024
MAX_NAME_BYTES = 4 * 1024
_PARAMETER = re.compile(rb';\s*([A-Za-z*]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))')
_DISPOSITION = re.compile(rb"^content-disposition:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)


class BadForm(Exception):
    """The form cannot be read; the text says why."""


def boundary_of(content_type: bytes) -> bytes:
    """What separates the parts. Raises `BadForm` where none is named."""
    parameters = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(content_type)}
    boundary: bytes = parameters.get(b"boundary", b"")
    if not 0 < len(boundary) <= 200:
        raise BadForm("the Content-Type of a form must name its boundary")
    return boundary


class ModelField:
    """Fed with the body in pieces of any size; holds on to no more than a part's head or the field itself."""

    def __init__(self, boundary: bytes) -> None:
        self.value: bytes | None = None
        self.start = self.end = 0
        """Where in the body the value is."""
        self._delimiter = b"\r\n--" + boundary
        # The first delimiter may lack its line break, because the body begins with it.
        self._rest = b"\r\n"
        self._at = -2
        self._step = self._skip_part

    def feed(self, piece: bytes) -> None:
        self._rest += piece
        while self._step():
            pass

    def _drop(self, count: int) -> None:
        self._rest = self._rest[count:]
        self._at += count

    def _skip_part(self) -> bool:
        found = self._rest.find(self._delimiter)
        if found < 0:
            self._drop(max(0, len(self._rest) - len(self._delimiter) + 1))
            return False
        self._drop(found + len(self._delimiter))
        self._step = self._after_delimiter
        return True

    def _after_delimiter(self) -> bool:
        if len(self._rest) < 2:
            return False
        self._step = self._ignore if self._rest.startswith(b"--") else self._read_head
        return True

    def _ignore(self) -> bool:
        self._drop(len(self._rest))
        return False

    def _read_head(self) -> bool:
        found = self._rest.find(b"\r\n\r\n")
        if found < 0:
            if len(self._rest) > MAX_HEAD_BYTES:
                raise BadForm("a part of the form has too long a head")
            return False
        self._step = self._read_model if _is_model(self._rest[:found]) else self._skip_part
        self._drop(found + 4)
        return True

    def _read_model(self) -> bool:
        found = self._rest.find(self._delimiter)
        if found < 0 and len(self._rest) <= MAX_NAME_BYTES:
            return False
        if not 0 <= found <= MAX_NAME_BYTES:
            raise BadForm("the form's field `model` is too long")
        if self.value is not None:
            raise BadForm("the form has two fields `model`")
        self.value = self._rest[:found]
        self.start, self.end = self._at, self._at + found
        self._step = self._skip_part
        return True


def _is_model(head: bytes) -> bool:
    disposition = _DISPOSITION.search(head)
    if disposition is None:
        return False
    parameters = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(disposition[1])}
    return parameters.get(b"name") == b"model" and b"filename" not in parameters
