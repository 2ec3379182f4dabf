"""Reversible swaps: a method of one object, and a name in a module that several syncs may watch at once.

Whatever is swapped is put back; if somebody else swapped it meanwhile, theirs is left alone.
"""

import copy
import functools
import threading
import types
from collections.abc import Callable, MutableMapping
from typing import Any

Restore = Callable[[], None]
Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_ABSENT = object()
_LOCK = threading.Lock()


class Shadow:
    """Stands in front of one object's method, as an attribute of that object.

    A pickled or deep-copied object must not carry our hook, nor call the method of the object it was copied from: the
    copy gets its own method back.
    """

    def __init__(self, owner: object, name: str, original: Callable[..., Any], around: Around) -> None:
        self._owner, self._name, self._original, self._around = owner, name, original, around
        self._was_on_instance = name in vars(owner)
        self.over = False
        self.before: Any = _ABSENT
        self.__wrapped__ = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._around(self._original, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("_") and not name.startswith("__")) or name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self._original, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._was_on_instance:
            return copy.deepcopy(self._original, memo)
        return _method_of(memo.get(id(self._owner), self._owner), self._name)

    def __reduce__(self) -> Any:
        if self._was_on_instance:
            return _same, (self._original,)
        return _method_of, (self._owner, self._name)


def _same(value: Any) -> Any:
    return value


def _method_of(owner: Any, name: str) -> Any:
    return types.MethodType(getattr(type(owner), name), owner)


def shadow(owner: object, name: str, around: Around) -> Restore | None:
    """Put a hook in front of ``owner.name``.

    Returns:
        What puts it back, or None when there is no such method or the object takes no attributes.
    """
    original = getattr(owner, name, None)
    attributes = getattr(owner, "__dict__", None)
    if not callable(original) or not isinstance(attributes, dict):
        return None
    hook = Shadow(owner, name, original, around)
    with _LOCK:
        hook.before = attributes.get(name, _ABSENT)
        attributes[name] = hook

    def restore() -> None:
        # Two engines can hook one model in two threads, and be done in any order: a hook that is over is passed
        # through while another lies on it, and goes with that one.
        with _LOCK:
            hook.over, hook._around = True, _pass_through
            now = attributes.get(name, _ABSENT)
            while isinstance(now, Shadow) and now.over:
                now = now.before
            if attributes.get(name) is hook:
                _put(attributes, name, now)

    return restore


def _pass_through(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return call(*args, **kwargs)


def swap(attributes: MutableMapping[str, Any], name: str, value: Any) -> Restore:
    """Put a value in the place of another, or of none, in an object's attributes."""
    before = attributes.get(name, _ABSENT)
    attributes[name] = value

    def restore() -> None:
        if attributes.get(name) is value:
            _put(attributes, name, before)

    return restore


class Shared:
    """Stands in a module for one of its functions, as long as anybody watches it.

    Two engines in two threads share one; it goes when the last of them does.
    """

    def __init__(self, original: Callable[..., Any], before: Any) -> None:
        self.original = original
        self.before = before
        self.watchers: tuple[Around, ...] = ()
        self.__wrapped__ = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.original
        for watcher in self.watchers:
            call = functools.partial(_through, watcher, call)
        return call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in {"original", "before", "watchers", "__wrapped__"}:
            raise AttributeError(name)
        return getattr(self.original, name)


def _through(watcher: Around, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return watcher(call, args, kwargs)


def watch(namespace: MutableMapping[str, Any], name: str, original: Callable[..., Any], watcher: Around) -> Restore:
    """Let ``watcher`` see calls of ``namespace[name]``.

    Args:
        namespace: A module's ``__dict__``.
        name: The name in it; it may be missing, as ``print`` mostly is.
        original: What the name means now.
        watcher: Called with the next callable, the arguments and the keyword arguments.
    """
    with _LOCK:
        before = namespace.get(name, _ABSENT)
        if isinstance(before, Shared):
            hook = before
        else:
            hook = Shared(original, before)
            namespace[name] = hook
        hook.watchers = (*hook.watchers, watcher)

    def restore() -> None:
        with _LOCK:
            hook.watchers = tuple(one for one in hook.watchers if one is not watcher)
            if not hook.watchers and namespace.get(name) is hook:
                _put(namespace, name, hook.before)

    return restore


def _put(attributes: MutableMapping[str, Any], name: str, before: Any) -> None:
    if before is _ABSENT:
        attributes.pop(name, None)
    else:
        attributes[name] = before
