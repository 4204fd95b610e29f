"""JSON null where a list or a map is expected: it means empty, as Go writes a slice or map without elements."""

from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import (
    CollectionType,
    DictType,
    ListType,
    Metadata,
    NoneType,
    StructType,
    Type,
    UnionType,
    type_info,
)

T = TypeVar("T")


def decode(decoder: "msgspec.json.Decoder[T]", data: bytes) -> T:
    """Decodes as the decoder does. Data that is valid but for such nulls is valid too."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        return msgspec.convert(filled(msgspec.json.decode(data), decoder.type), decoder.type)


def filled(value: Any, kind: Any) -> Any:
    """The value for this type, with empty lists and maps in the place of nulls."""
    return _filled(value, _shape(kind))


@cache
def _shape(kind: Any) -> Type:
    return type_info(kind)


def _filled(value: Any, shape: Type) -> Any:
    match shape:
        case Metadata():
            return _filled(value, shape.type)
        case UnionType():
            return _filled_as_one_of(value, shape.types)
        case StructType() if isinstance(value, dict):
            known = {field.encode_name: field.type for field in shape.fields}
            return {name: _filled(one, known[name]) if name in known else one for name, one in value.items()}
        case DictType():
            return {} if value is None else value
        case CollectionType() if value is None:
            return []
        case ListType() if isinstance(value, list):
            return [_filled(one, shape.item_type) for one in value]
    return value


def _filled_as_one_of(value: Any, shapes: tuple[Type, ...]) -> Any:
    if value is None and any(isinstance(shape, NoneType) for shape in shapes):
        return None
    fitting = StructType if isinstance(value, dict) else CollectionType
    found = next((shape for shape in shapes if isinstance(shape, fitting)), None)
    return value if found is None else _filled(value, found)
