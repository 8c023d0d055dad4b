"""The scope of a decorated function: the name of its operation, which no other function may have."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any, Callable, Tuple

_PLAIN = (str, bytes, int, float, bool, type(None))


def default_scope(function: Callable[..., Any]) -> str:
    """The module and the name. Refuses a function whose name differs between processes, or may be another function's."""
    name, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    if name is None or "<" in name:
        raise ValueError(
            f"{name or repr(function)} has no name that stays the same: give its operation a name, such as "
            "scope='charge'"
        )
    if module in ("__main__", "__mp_main__"):
        # `python -m shop.pay` says which module it is. `python shop/pay.py` does not: the same function would have
        # another scope when a worker imports it, and two scripts of one name would share theirs.
        spec = getattr(sys.modules.get(module), "__spec__", None)
        module = getattr(spec, "name", module)
    if not module or module in ("__main__", "__mp_main__") or "<" in module:
        raise ValueError(
            f"{name} is in a script, whose module has no name that stays the same: give its operation a name, such "
            f"as scope='{name}'"
        )
    return f"{module}.{name}"


def is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions do the same: one that a reloaded module has made again, but not one of two closures."""
    if one is other:
        return True
    inner = [inspect.unwrap(function) for function in (one, other)]
    first, second = (getattr(function, "__code__", None) for function in inner)
    if first is None or second is None or first.co_filename != second.co_filename or _text(first) != _text(second):
        return False
    held = [_held(function) for function in inner]
    return len(held[0]) == len(held[1]) and all(map(_is_equal, *held))


def _text(code: types.CodeType) -> Tuple[Any, ...]:
    """Without the numbers of its lines."""
    constants = [_text(value) if isinstance(value, types.CodeType) else repr(value) for value in code.co_consts]
    return (code.co_name, code.co_code, code.co_names, *constants)


def _held(function: Any) -> Tuple[Any, ...]:
    """What tells functions with the same code apart."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # Not set yet: the function's own name.
            cells.append(None)
    defaults = sorted((function.__kwdefaults__ or {}).items())
    values = [value for _, value in defaults]
    return (getattr(function, "__self__", None), *cells, *(function.__defaults__ or ()), *values)


def _is_equal(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and bool(one == other))
