"""The guard: the error of one sink reaches neither the trainer nor the other sinks, and none is forgotten."""

import threading

import pytest

from sglang_telemetry.events import Event, TelemetryError
from sglang_telemetry.names import Component, Phase
from sglang_telemetry.sinks.guard import Fanout
from sglang_telemetry.testing.doubles import RecordingSink
from tests.sinks import entered, who

NOW = 1_800_000_000.0
EVENT = entered(who(), Phase.SAVE)


class SickSink(RecordingSink):
    """Raises as long as it is sick."""

    def __init__(self, component: Component = Component.SINK) -> None:
        super().__init__(component)
        self.sick = True

    def emit(self, event: Event) -> None:
        """Raise or keep."""
        if self.sick:
            raise OSError(28, "No space left on device")
        super().emit(event)


class Nameless:
    """A user's sink that is not quite one."""

    def emit(self, event: Event) -> None:
        """Fail in a way of its own."""
        raise LookupError("no such table")

    def close(self) -> None:
        """Fail here too."""
        raise LookupError("no such table")


def told(count: int = 1, component: Component = Component.JOURNAL) -> TelemetryError:
    """What the others hear of a sick disk."""
    text = "OSError: [Errno 28] No space left on device"
    return TelemetryError(identity=who(), component=component, text=text, count=count, at=NOW)


def fanout(*sinks: RecordingSink | Nameless) -> Fanout:
    """A fan-out that knows who speaks."""
    made = Fanout(sinks, now=lambda: NOW)  # type: ignore[arg-type]
    made.identity = who()
    return made


@pytest.mark.parametrize("place", [0, 1, 2])
def test_others_get_the_event_and_the_error(place: int) -> None:
    """Whatever the order of the sinks."""
    good = [RecordingSink(), RecordingSink()]
    sinks: list[RecordingSink] = [*good]
    sinks.insert(place, SickSink(Component.JOURNAL))
    fanout(*sinks).emit(EVENT)
    for sink in good:
        assert sorted(sink.events, key=lambda one: type(one).__name__) == [EVENT, told()]


def test_failing_sink_is_told_when_it_works_again() -> None:
    """The journal counts its own gaps: one error that stands for all, behind the event that went through."""
    sick, good = SickSink(Component.JOURNAL), RecordingSink()
    fan = fanout(sick, good)
    for _ in range(5):
        fan.emit(EVENT)
    sick.sick = False
    fan.emit(EVENT)
    fan.emit(EVENT)
    assert sick.events == [EVENT, told(5), EVENT]
    assert [one for one in good.events if isinstance(one, TelemetryError)] == [told()] * 5
    assert good.events.count(EVENT) == 7


def test_errors_of_two_sick_sinks_are_kept_apart() -> None:
    """Each hears of the other's errors too, once it is well."""
    one, two = SickSink(Component.JOURNAL), SickSink(Component.TRACES)
    fan = fanout(one, two)
    for _ in range(3):
        fan.emit(EVENT)
    one.sick = two.sick = False
    fan.emit(EVENT)
    both = [told(3, Component.JOURNAL), told(3, Component.TRACES)]
    for sink in (one, two):
        assert sink.events[0] == EVENT
        assert sorted(sink.events[1:], key=str) == sorted(both, key=str)


def test_sink_that_is_sick_again_while_it_is_told() -> None:
    """What it is owed is kept for the next time, with its count."""

    class Relapsing(SickSink):
        def emit(self, event: Event) -> None:
            if isinstance(event, TelemetryError) and not self.events[1:]:
                self.events.append(EVENT)
                raise OSError(28, "No space left on device")
            super().emit(event)

    sick = Relapsing(Component.JOURNAL)
    fan = fanout(sick)
    fan.emit(EVENT)
    fan.emit(EVENT)
    sick.sick = False
    fan.emit(EVENT)  # the debt of two is refused
    fan.emit(EVENT)
    assert sick.events == [EVENT, EVENT, EVENT, told(2)]


def test_nothing_is_raised_by_what_is_no_sink() -> None:
    """No component, an error at each call: the others still get everything."""
    good = RecordingSink()
    fan = fanout(Nameless(), good)
    assert fan.emit(EVENT) is False
    fan.error(Component.INSTRUMENT, ValueError("x"))
    fan.close()
    assert good.closed
    assert {one.component for one in good.events if isinstance(one, TelemetryError)} == {
        Component.SINK,
        Component.INSTRUMENT,
    }


def test_emit_says_whether_a_log_took_it() -> None:
    """The engine's own print may be swallowed only when a person can read it elsewhere."""
    log = SickSink(Component.LOG)
    fan = fanout(RecordingSink(), log)
    assert fan.emit(EVENT) is False
    log.sick = False
    assert fan.emit(EVENT) is True
    assert fanout(RecordingSink()).emit(EVENT) is False
    assert Fanout(()).emit(EVENT) is False


def test_error_of_our_own() -> None:
    """It goes to every sink, cleaned, short, and with the identity."""
    sink = RecordingSink()
    fanout(sink).error(Component.INSTRUMENT, ValueError("http://u:s3cr3t@h \x1b[31m" + "x" * 9000))
    (event,) = sink.events
    assert isinstance(event, TelemetryError)
    assert (event.identity, event.component, event.count) == (who(), Component.INSTRUMENT, 1)
    assert event.text.startswith("ValueError: http://h ")
    assert "s3cr3t" not in event.text
    assert "\x1b" not in event.text
    assert len(event.text.encode()) <= 500


def test_interrupt_goes_through() -> None:
    """Ctrl-C inside a sink is the user's, not an error of the sink."""

    class Interrupted(RecordingSink):
        def emit(self, event: Event) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fanout(Interrupted()).emit(EVENT)


def test_sink_that_emits_itself() -> None:
    """A sink that is called from within a sink does not wait for itself."""
    good = RecordingSink()

    class Talkative(RecordingSink):
        def emit(self, event: Event) -> None:
            if event == EVENT:
                fan.error(Component.SINK, ValueError("nested"))

    fan = fanout(Talkative(), good)
    fan.emit(EVENT)
    assert [type(one).__name__ for one in good.events] == ["TelemetryError", "PhaseStarted"]


def test_threads() -> None:
    """Every event of every thread arrives once."""
    sink = RecordingSink()
    fan = fanout(sink, SickSink())
    threads = [threading.Thread(target=lambda: [fan.emit(EVENT) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sink.events.count(EVENT) == 800
    assert sum(one.count for one in sink.events if isinstance(one, TelemetryError)) == 800
