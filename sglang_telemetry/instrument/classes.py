"""Finds engines by themselves: watches classes being made, and the first sync of an object that looks like an engine.

``update_policy`` is also what some reinforcement-learning agents call their own learning step: only an object that has
a ``base_url`` with a URL is taken for an engine.
"""

import builtins
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from sglang_telemetry.instrument.engine import METHOD
from sglang_telemetry.instrument.seams import Shadow


class ClassWatcher:
    """From :meth:`start` to :meth:`stop`, each engine whose class is made meanwhile is found at its first sync.

    Args:
        found: Gets an engine before its first sync. It never raises.
    """

    def __init__(self, found: Callable[[object], None]) -> None:
        self._found = found
        self._lock = threading.RLock()
        self._build: Any = None
        self._hook: Any = None
        self._wrapped: list[tuple[type, Any, Any]] = []

    def start(self) -> None:
        """Watch; a second call does nothing."""
        if self._hook is not None:
            return
        build = self._build = builtins.__build_class__

        @functools.wraps(build)
        def hook(*args: Any, **kwargs: Any) -> Any:
            made = build(*args, **kwargs)
            try:
                self._saw(made)
            except Exception:  # a metaclass that forbids it: the class is as good as without us
                return made
            return made

        self._hook = builtins.__build_class__ = hook

    def stop(self) -> None:
        """Put everything back that nobody else has put something over."""
        if builtins.__build_class__ is self._hook:
            builtins.__build_class__ = self._build
        self._hook = None
        with self._lock:
            for made, original, wrapper in self._wrapped:
                if vars(made).get(METHOD) is wrapper:
                    setattr(made, METHOD, original)
            self._wrapped.clear()

    def _saw(self, made: Any) -> None:
        original = vars(made).get(METHOD) if isinstance(made, type) else None
        if self._hook is None or not inspect.isfunction(original):
            return
        wrapper = self._around_async(original) if inspect.iscoroutinefunction(original) else self._around(original)
        setattr(made, METHOD, wrapper)
        with self._lock:
            self._wrapped.append((made, original, wrapper))

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update_policy(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_new(engine):
                return getattr(engine, METHOD)(*args, **kwargs)
            return original(engine, *args, **kwargs)

        return update_policy

    def _around_async(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def update_policy(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_new(engine):
                return await getattr(engine, METHOD)(*args, **kwargs)
            return await original(engine, *args, **kwargs)

        return update_policy

    def _is_new(self, engine: object) -> bool:
        """Is this an engine that was not instrumented before this call, and is now?"""
        if self._hook is None or not _is_engine(engine):
            return False
        with self._lock:
            if _is_instrumented(engine):
                return False
            self._found(engine)
            return _is_instrumented(engine)


def _is_engine(engine: object) -> bool:
    try:
        url = getattr(engine, "base_url", None)
        return isinstance(url, str) and "://" in url and isinstance(getattr(engine, "__dict__", None), dict)
    except Exception:
        return False


def _is_instrumented(engine: object) -> bool:
    return isinstance(vars(engine).get(METHOD), Shadow)
