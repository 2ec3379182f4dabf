"""Engines that are found by their classes, and what is left alone."""

import asyncio
import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import sglang_telemetry
from sglang_telemetry.instrument.classes import ClassWatcher
from sglang_telemetry.testing import RecordingSink

URL = "http://127.0.0.1:1"


class Found:
    """Instruments what is found, and remembers it."""

    def __init__(self) -> None:
        self.engines: list[Any] = []
        self.sink = RecordingSink()
        self.watcher = ClassWatcher(self)

    def __call__(self, engine: object) -> None:
        self.engines.append(engine)
        sglang_telemetry.instrument(engine, sinks=[self.sink])


@pytest.fixture
def found() -> Iterator[Found]:
    """A watcher that watches, and is stopped."""
    one = Found()
    one.watcher.start()
    yield one
    one.watcher.stop()


def test_an_engine_is_found_at_its_first_sync(found: Found) -> None:
    """Each object once, its first sync included, below an abstract base as well."""

    class Base(ABC):
        @abstractmethod
        def update_policy(self, model: Any) -> Any: ...

    class Engine(Base):
        def __init__(self) -> None:
            self.base_url = URL

        def update_policy(self, model: Any) -> Any:
            """The engine's own words."""
            return model

    engine = Engine()
    assert [engine.update_policy(n) for n in (1, 2)] == [1, 2]
    assert found.engines == [engine]
    assert [record.sequence for record in found.sink.records] == [1, 2]
    assert Engine.update_policy.__doc__ == "The engine's own words."


def test_a_subclass_that_calls_its_base_makes_one_sync(found: Found) -> None:
    """Both classes are watched; the object is instrumented once."""

    class Engine:
        base_url = URL

        def update_policy(self, model: Any) -> Any:
            return [model]

    class Special(Engine):
        def update_policy(self, model: Any) -> Any:
            return super().update_policy(model)

    assert Special().update_policy(1) == [1]
    assert len(found.sink.records) == 1


def test_an_async_engine(found: Found) -> None:
    """Its sync lasts until it has been awaited."""

    class Engine:
        base_url = URL

        async def update_policy(self, model: Any) -> Any:
            await asyncio.sleep(0)
            return model

    assert asyncio.run(Engine().update_policy(3)) == 3
    assert len(found.sink.records) == 1


def test_a_dataclass(found: Found) -> None:
    """What a decorator adds to the class later does not matter."""

    @dataclass
    class Engine:
        base_url: str

        def update_policy(self, model: Any) -> Any:
            return model

    assert Engine(URL).update_policy(3) == 3
    assert len(found.sink.records) == 1


def test_an_agent_that_learns_is_no_engine(found: Found) -> None:
    """The same method name, no URL of a server, or none that is one; nor one whose attributes raise."""

    class Agent:
        def update_policy(self, batch: Any) -> Any:
            return batch

    class Odd(Agent):
        base_url = 7

    class Raising(Agent):
        @property
        def base_url(self) -> str:
            raise RuntimeError("not yet")

    class Slotted(Agent):
        __slots__ = ("base_url",)

    assert [kind().update_policy(1) for kind in (Agent, Odd, Raising, Slotted)] == [1, 1, 1, 1]
    assert found.engines == []


def test_an_engine_that_was_instrumented_by_hand(found: Found) -> None:
    """It is left as it is."""

    class Engine:
        base_url = URL

        def update_policy(self, model: Any) -> Any:
            return model

    engine, mine = Engine(), RecordingSink()
    with sglang_telemetry.instrument(engine, sinks=[mine]):
        engine.update_policy(1)
    assert (len(mine.records), found.engines) == (1, [])


def test_stop_leaves_no_trace() -> None:
    """The builtin and the classes are as they were; a class that somebody wrapped over is theirs."""
    build, found = builtins.__build_class__, Found()
    found.watcher.start()
    found.watcher.start()

    class Engine:
        base_url = URL

        def update_policy(self, model: Any) -> Any:
            return model

    class Wrapped:
        base_url = URL

        def update_policy(self, model: Any) -> Any:
            return model

    ours: Any = Wrapped.update_policy
    Wrapped.update_policy = theirs = lambda self, model: ours(self, model)  # type: ignore[method-assign, assignment]
    found.watcher.stop()
    assert builtins.__build_class__ is build
    assert not hasattr(Engine.update_policy, "__wrapped__")
    assert Wrapped.update_policy is theirs
    assert (Engine().update_policy(1), Wrapped().update_policy(2), found.engines) == (1, 2, [])


def test_a_watcher_that_fails_costs_no_class_and_no_sync() -> None:
    """A metaclass that forbids it, and an engine that cannot be instrumented."""

    class Closed(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError("closed")

    watcher = ClassWatcher(lambda engine: None)
    watcher.start()
    try:

        class Engine(metaclass=Closed):
            base_url = URL

            def update_policy(self, model: Any) -> Any:
                return model

        class Other:
            base_url = URL

            def update_policy(self, model: Any) -> Any:
                return model

        assert (Engine().update_policy(1), Other().update_policy(2)) == (1, 2)
    finally:
        watcher.stop()
