"""Bytes that go past the hub, between whoever has them and the store: the hub says where, and verifies what came."""

from starlette.requests import Request
from starlette.responses import Response

from ostler.domain.errors import BadInput
from ostler.hub.api.routes import json_response, number_in_query
from ostler.store.base import Asked

MOST_BYTES = 5 * 10**12
"""In one object, by what S3 allows."""


def announced(request: Request) -> int:
    if "size" not in request.query_params:
        raise BadInput("size: say how many bytes there are to bring", [("size", "missing")])
    return number_in_query(request, "size", 0, 0, MOST_BYTES)


def told(asked: Asked | None) -> Response:
    """`direct`: whether the bytes go past the hub at all."""
    if asked is None:
        return json_response({"direct": False, "whole": False, "size": 0, "pieces": []})
    document = {"direct": True, "whole": asked.whole, "size": asked.size, "pieces": asked.pieces}
    return json_response(document, 201 if asked.whole else 200)
