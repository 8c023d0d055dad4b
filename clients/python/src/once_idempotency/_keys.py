"""What is one key, and what is compared: from a function's arguments to texts."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import inspect
import json
import math
import string
import sys
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from .errors import KeyMissing

ALL: Any = type("ALL", (), {"__repr__": lambda self: "all arguments"})()
Key = Union[str, Callable[..., Any]]
Payload = Union[str, Sequence[str], Callable[..., Any], None]

MAX_PAYLOAD_BYTES = 32 * 1024  # A larger one is compared by its SHA-256.
_BUGS = {"undefined", "null", "nil", "none", "nan", "true", "false", "[object object]", "00000000-0000-0000-0000-000000000000"}


def _loaded(module: str, name: str) -> Tuple[type, ...]:
    """Empty, if the program has not imported it: then no value is of this type, and a first call need not wait for it."""
    found = getattr(sys.modules.get(module), name, None)
    return () if found is None else (found,)


def key_part(value: Any, name: str) -> str:
    """A value that stands for itself in every process. An object's default text has an address in it."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or value == "":
        raise KeyMissing(f"the key's part '{name}' is missing; nothing was run")
    if isinstance(value, bool) or not isinstance(
        value, (str, int, datetime.date, datetime.datetime, *_loaded("uuid", "UUID"), *_loaded("decimal", "Decimal"))
    ):
        raise TypeError(
            f"the key's part '{name}' is a {type(value).__name__}; use a text, a number, a UUID or a date, "
            "such as one of its members"
        )
    text = value.isoformat() if isinstance(value, datetime.date) else str(value)
    if text.strip().lower() in _BUGS:
        raise KeyMissing(f"the key's part '{name}' is {text!r}, as a missing value is written; nothing was run")
    return text


class _Template(string.Formatter):
    """Its result has the values as they were written. Two lists of values never have one text: where a value contains the
    text that stands behind it, as "1-2" in "{x}-{y}", the key is a JSON array of the template and the values."""

    def text(self, template: str, bound: Mapping[str, Any]) -> str:
        self.parts: List[str] = []
        text = self.vformat(template, (), bound)
        literals = [""]  # Before the first field, and behind each.
        for literal, field, _, _ in string.Formatter().parse(template):
            literals[-1] += literal
            if field is not None:
                literals.append("")
        is_plain = not text.startswith('["') and len(self.parts) == len(literals) - 1 and all(
            literal and (part + literal).find(literal) == len(part) for part, literal in zip(self.parts[:-1], literals[1:])
        )
        return text if is_plain else json.dumps([template, *self.parts], ensure_ascii=False)

    def format_field(self, value: Any, format_spec: str) -> str:
        text: str
        if format_spec:
            if not isinstance(value, float):
                key_part(value, self.field)
            text = super().format_field(value, format_spec)
            key_part(text.strip(), self.field)
        else:
            text = key_part(value, self.field)
        self.parts.append(text)
        return text

    def convert_field(self, value: Any, conversion: Any) -> Any:
        key_part(value, self.field)
        return super().convert_field(value, conversion)

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.field = field_name
        try:
            found: Any = super().get_field(field_name, args, kwargs)
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise KeyMissing(f"the key's part '{field_name}' is not there: {error!r}; nothing was run") from error
        return found


class Arguments:
    """Those of one function, bound to their names with the defaults applied: f(1) and f(1, x=None) are one call."""

    def __init__(self, function: Callable[..., Any], key: Key, payload: Payload):
        self.signature = inspect.signature(function)
        self.key, self.payload = key, payload
        names = list(self.signature.parameters)
        self.owner = names[0] if names and names[0] in ("self", "cls") else None
        if isinstance(key, str):
            if not key:
                raise ValueError("the key is empty: name what makes a call the same, such as key='{order_id}'")
            for _, field, _, _ in string.Formatter().parse(key):
                self._require(None if field is None else field.split(".")[0].split("[")[0], names, key)
        elif not callable(key):
            raise TypeError("key= is a template such as 'order-{order_id}', or a function of the arguments")
        if isinstance(payload, str):
            self.payload = payload = (payload,)
        if payload is not ALL and payload is not None and not callable(payload):
            for name in payload:
                self._require(name, names, "payload")

    @staticmethod
    def _require(name: Optional[str], names: List[str], where: str) -> None:
        if name is not None and name not in names:
            raise ValueError(f"'{name}' in {where!r} is no parameter of the function, which has {', '.join(names) or 'none'}")

    def bind(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Dict[str, Any]:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def key_of(self, args: Tuple[Any, ...], kwargs: Dict[str, Any], bound: Mapping[str, Any]) -> str:
        if isinstance(self.key, str):
            return whole_key(_Template().text(self.key, bound))
        return whole_key(self.key(*args, **kwargs))

    def payload_of(self, args: Tuple[Any, ...], kwargs: Dict[str, Any], bound: Mapping[str, Any]) -> Dict[str, str]:
        if self.payload is None:
            return {}
        if callable(self.payload) and self.payload is not ALL:
            return compared(self.payload(*args, **kwargs))
        names: Iterable[str] = [name for name in bound if name != self.owner]
        if self.payload is not ALL:
            assert not isinstance(self.payload, str) and not callable(self.payload)
            names = self.payload
        try:
            return compared({name: bound[name] for name in names})
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError  # A UnicodeError takes more than a text.
            raise kind(f"{error}; nothing was run; name the arguments that count with payload=[...]") from None


def named_in(key: Key) -> str:
    """Its arguments, for people."""
    fields = [field for _, field, _, _ in string.Formatter().parse(key) if field] if isinstance(key, str) else []
    return ", ".join(dict.fromkeys(fields)) or "key"


def whole_key(value: Any) -> str:
    """The text of a key. Several parts become a JSON array, so that no two lists of parts are one key."""
    if isinstance(value, (tuple, list)):
        if not value:
            raise KeyMissing("the key is an empty list; nothing was run")
        return json.dumps([key_part(part, str(index)) for index, part in enumerate(value)], ensure_ascii=False)
    text = key_part(value, "key")
    return text


def compared(value: Any) -> Dict[str, str]:
    """The member of POST /v1/claims that has what is compared."""
    try:
        text = _json_of(value)
    except RecursionError:
        raise ValueError("an argument that contains itself, or lists in lists without end, cannot be compared") from None
    data = text.encode("utf-8")
    if len(data) <= MAX_PAYLOAD_BYTES:
        return {"payload_json": text}
    return {"fingerprint": f"sha256:{_sha256(data)}"}


def _sha256(data: Any) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def _json_of(value: Any) -> str:
    return json.dumps(
        _with_names(value), default=_plain, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
    )


def _with_names(value: Any) -> Any:
    """JSON has texts as names only, and would make one of {1: x} and {"1": x}: such a mapping is a list of pairs."""
    if isinstance(value, dict):
        members = dict.items(value)  # All of them: the items() of a form, as frameworks have it, are one for each name.
        if all(isinstance(name, str) for name, _ in members):
            return {name: _with_names(member) for name, member in members}
        return _sorted([name, member] for name, member in members)
    if isinstance(value, (list, tuple)):
        return [_with_names(part) for part in value]
    return value


def _sorted(values: Iterable[Any]) -> List[Any]:
    """By their texts: not all values have an order, and sets of sets have one that differs between processes."""
    return [json.loads(text) for text in sorted(map(_json_of, values))]


def _plain(value: Any) -> Any:
    """What is not JSON and has one plain form."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _with_names(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):  # pydantic
        _require_shown(value)
        return value.model_dump(mode="json")
    if isinstance(value, enum.Enum):
        return _with_names(value.value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (*_loaded("uuid", "UUID"), *_loaded("decimal", "Decimal"))):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"sha256": _sha256(value)}
    if isinstance(value, (set, frozenset)):
        return _sorted(value)
    raise TypeError(f"an argument of type {type(value).__name__} cannot be compared")


def _require_shown(value: Any) -> None:
    """pydantic's JSON has stars for each secret, and null for NaN and infinity."""
    if hasattr(value, "get_secret_value") or (isinstance(value, float) and not math.isfinite(value)):
        raise TypeError(f"a model with {value!r} cannot be compared")
    if hasattr(value, "model_dump"):
        fields = getattr(type(value), "model_fields", {})
        shown = [getattr(value, name, None) for name, field in fields.items() if not field.exclude]
        value = [*shown, *(getattr(value, "model_extra", None) or {}).values()]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple, set, frozenset)):
        return
    for part in value:
        _require_shown(part)
