"""The scope of a decorated function: the name of its operation, which no other function may have."""

from __future__ import annotations

import inspect
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
        # another scope when a worker imports it, and two scripts of one name would share theirs. `sys.modules` may have a
        # debugger or a profiler in place of the script.
        module = getattr(_spec(inspect.unwrap(function)), "name", module)
    if not module or module in ("__main__", "__mp_main__") or "<" in module:
        raise ValueError(
            f"{name} is in a script, whose module has no name that stays the same: give its operation a name, such "
            f"as scope='{name}'"
        )
    return f"{module}.{name}"


def origin(function: Callable[..., Any]) -> Tuple[Any, ...]:
    """Its name, its file, and the execution of its module, which a reload repeats."""
    inner = inspect.unwrap(function)
    file = getattr(getattr(inner, "__code__", None), "co_filename", "")
    return getattr(inner, "__qualname__", "<none>"), file, _spec(inner)


def _spec(inner: Callable[..., Any]) -> Any:
    return getattr(inner, "__globals__", {}).get("__spec__")


def is_again(known: Callable[..., Any], known_origin: Tuple[Any, ...], function: Callable[..., Any]) -> bool:
    """Whether a function is one that is known: itself, or made again by the same lines."""
    name, file, spec = origin(function)
    is_executed_again = known_origin[:2] == (name, file) and known_origin[2] is not spec
    return (is_executed_again and "<" not in name + file) or _is_equal(known, function, ())


def _is_equal(one: Any, other: Any, above: Tuple[Any, ...]) -> bool:
    """Whether two functions, or two values that they hold, do the same. `above` are functions that hold these."""
    if one is other or (one, other) in above:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, types.MethodType):
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    if not isinstance(one, types.FunctionType):
        return isinstance(one, _PLAIN) and bool(one == other)
    if one.__code__ != other.__code__ or one.__qualname__ != other.__qualname__:
        return False
    if one.__globals__ is not other.__globals__ and one.__code__.co_filename.startswith("<"):
        return False  # A text that exec() has run with other values. A file that is imported again has new ones too.
    first, second = _held(one), _held(other)
    return len(first) == len(second) and all(_is_equal(*pair, (*above, (one, other))) for pair in zip(first, second))


def _held(function: types.FunctionType) -> Tuple[Any, ...]:
    """What tells functions with the same code apart."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # Not set yet, and equal to nothing: it may become anything.
            cells.append(cell)
    defaults = (part for item in sorted((function.__kwdefaults__ or {}).items()) for part in item)
    return (*cells, *(function.__defaults__ or ()), *defaults)
