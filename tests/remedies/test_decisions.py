"""What the remedies decide: may it be sent again, for how long is it waited, may the run go on."""

import pytest

from sglang_telemetry import Applied, FailureCause, Remedies, Result, SyncRecord
from sglang_telemetry.events import Exchange
from sglang_telemetry.remedies.retry import Failed, First, first
from sglang_telemetry.remedies.stale import Stale
from sglang_telemetry.remedies.timeout import AutoTimeout, with_read_timeout
from tests.sinks import failed, record, who

RETRIED = {
    (FailureCause.SERVER_BUSY, Applied.NO, 429): First.FLUSH,
    (FailureCause.SERVER_BUSY, Applied.NO, 423): First.FLUSH,
    (FailureCause.UNREACHABLE, Applied.NO, None): First.READY,
    (FailureCause.SERVER_DIED, Applied.NO, None): First.RESTARTED,
    (FailureCause.PATH_NOT_VISIBLE, Applied.NO, 400): First.SETTLE,
}


@pytest.mark.parametrize("cause", FailureCause)
@pytest.mark.parametrize("applied", Applied)
@pytest.mark.parametrize("status", [None, 400, 409, 423, 429, 503])
def test_what_is_sent_again(cause: FailureCause, applied: Applied, status: int | None) -> None:
    """Five rows, and nothing else: no update that was taken, or may still be at work."""
    fitting = {key: value for key, value in RETRIED.items() if key[:2] == (cause, applied)}
    wanted = next((value for key, value in fitting.items() if key[0] != "server_busy" or key[2] == status), None)
    assert first(Failed(cause=cause, applied=applied, status=status), whole=True) is wanted


@pytest.mark.parametrize("status", [423, 429])
def test_a_server_at_work_on_another_update_gets_none_beside_it(status: int) -> None:
    """Two at once can kill it, whatever the status says."""
    busy = Failed(cause=FailureCause.SERVER_BUSY, applied=Applied.NO, status=status, another=True)
    assert first(busy, whole=True) is None


@pytest.mark.parametrize("cause", [FailureCause.SERVER_DIED, FailureCause.PATH_NOT_VISIBLE])
def test_a_checkpoint_that_is_not_known_to_be_whole_is_not_sent_again(cause: FailureCause) -> None:
    """It would kill the server a second time."""
    assert first(Failed(cause=cause, applied=Applied.NO, status=None), whole=False) is None


def test_time_outs() -> None:
    """Scaled to the size, with headroom, between floor and ceiling; nothing before anything is known."""
    options = Remedies(timeout="auto", timeout_floor_seconds=10, timeout_ceiling_seconds=100, timeout_headroom=2)
    known = AutoTimeout(options)
    assert known.seconds(1000) is None
    known.learn(8.0, 1000)
    assert known.seconds(1000) == 16.0
    assert known.seconds(2000) == 32.0
    assert known.seconds(10) == 16.0  # a smaller one may have to wait as long for running requests
    assert known.seconds(None) == 16.0
    assert known.seconds(10**9) == 100.0
    short = AutoTimeout(options)
    short.learn(0.1, None)
    assert short.seconds(1000) == 10.0


def test_the_slowest_of_the_last_updates_counts() -> None:
    """One that was slow is forgotten after twenty more."""
    known = AutoTimeout(Remedies(timeout="auto", timeout_floor_seconds=1, timeout_headroom=1))
    known.learn(50.0, 1000)
    for _ in range(19):
        known.learn(5.0, 1000)
    assert known.seconds(1000) == 50.0
    known.learn(5.0, 1000)
    assert known.seconds(1000) == 5.0


@pytest.mark.parametrize(("given", "wanted"), [(120, 7.0), (None, 7.0), ((3, 120), (3, 7.0)), (1.5, 7.0)])
def test_the_read_part_of_a_time_out(given: object, wanted: object) -> None:
    """A connect time-out stays what the engine wants."""
    assert with_read_timeout(given, 7.0) == wanted


def _failed(cause: FailureCause, exchange: Exchange | None = None) -> SyncRecord:
    exchanges = () if exchange is None else (exchange,)
    return failed(who(), cause=cause, exchanges=exchanges, decisive=None if exchange is None else 0)


GOOD = record(who())
BUSY = _failed(FailureCause.SERVER_BUSY, Exchange(method="POST", url="http://s:1/u", status_code=429))


def _stale(**bounds: float) -> Stale:
    return Stale(Remedies(on_failure="continue_stale", **bounds))  # type: ignore[arg-type]


def _goes_on(stale: Stale, one: SyncRecord, now: float, *, in_step: bool = True) -> bool | None:
    decision = stale.decide(one, now, in_step=in_step)
    return None if decision is None else decision.goes_on


def test_a_run_goes_on_for_so_many_syncs() -> None:
    """And from the start after one that succeeded."""
    stale = _stale(stale_syncs=2)
    assert [_goes_on(stale, one, 1.0) for one in (GOOD, BUSY, BUSY, BUSY)] == [None, True, True, False]
    assert [_goes_on(stale, one, 2.0) for one in (GOOD, BUSY, BUSY, BUSY)] == [None, True, True, False]


def test_a_run_goes_on_for_so_many_seconds() -> None:
    """Since the last sync that succeeded."""
    stale = _stale(stale_seconds=60)
    assert _goes_on(stale, GOOD, 100.0) is None
    assert [_goes_on(stale, BUSY, now) for now in (101.0, 160.0, 160.1)] == [True, True, False]


def test_the_first_bound_that_is_reached_counts() -> None:
    """Of two."""
    stale = _stale(stale_syncs=9, stale_seconds=60)
    _goes_on(stale, GOOD, 0.0)
    assert _goes_on(stale, BUSY, 61.0) is False


def test_no_run_goes_on_before_its_first_sync_succeeded() -> None:
    """The server has its START weights: those are not stale ones of this run."""
    assert _goes_on(_stale(stale_syncs=5), BUSY, 0.0) is False


def test_no_run_goes_on_when_others_may_wait() -> None:
    """The ranks would call different collectives."""
    stale = _stale(stale_syncs=5)
    _goes_on(stale, GOOD, 0.0)
    assert _goes_on(stale, BUSY, 1.0, in_step=False) is False


@pytest.mark.parametrize(
    "cause",
    [
        FailureCause.PEER,
        FailureCause.UNREACHABLE,
        FailureCause.SERVER_DIED,
        FailureCause.NOT_APPLIED,
        FailureCause.UNKNOWN,
    ],
)
def test_no_run_goes_on_with_weights_that_nobody_knows(cause: FailureCause) -> None:
    """A server that went away comes back with its START weights."""
    stale = _stale(stale_syncs=5)
    _goes_on(stale, GOOD, 0.0)
    assert _goes_on(stale, _failed(cause), 1.0) is False


def test_no_run_goes_on_after_a_checkpoint_that_killed_the_server() -> None:
    """The cause is that of the local check; that there was no answer says the rest."""
    stale = _stale(stale_syncs=5)
    _goes_on(stale, GOOD, 0.0)
    closed = Exchange(method="POST", url="http://s:1/u", error_type="ConnectionError")
    assert _goes_on(stale, _failed(FailureCause.CHECKPOINT_INVALID, closed), 1.0) is False
    assert _goes_on(stale, _failed(FailureCause.CHECKPOINT_INVALID), 1.0) is True


def test_a_sync_that_was_stopped_changes_nothing() -> None:
    """It is no failure."""
    stale = _stale(stale_syncs=1)
    _goes_on(stale, GOOD, 0.0)
    assert _goes_on(stale, record(who(), result=Result.CANCELLED), 1.0) is None
    assert _goes_on(stale, BUSY, 2.0) is True


def test_no_run_goes_on_when_a_server_was_away_before_it_was_sent_again() -> None:
    """The last answer is of a server that may have its START weights."""
    stale = _stale(stale_syncs=5)
    _goes_on(stale, GOOD, 0.0)
    url = "http://s:1/update_weights_from_disk"
    away = Exchange(method="POST", url=url, error_type="ConnectionError")
    busy = Exchange(method="POST", url=url, status_code=429)
    one = failed(who(), cause=FailureCause.SERVER_BUSY, exchanges=(away, busy), decisive=1)
    assert _goes_on(stale, one, 1.0) is False


@pytest.mark.parametrize(("status", "goes_on"), [(400, True), (500, False), (502, False)])
def test_no_run_goes_on_when_the_server_may_be_dying(status: int, goes_on: bool) -> None:
    """Its death takes seconds."""
    stale = _stale(stale_syncs=5)
    _goes_on(stale, GOOD, 0.0)
    answer = Exchange(method="POST", url="http://s:1/u", status_code=status)
    assert _goes_on(stale, _failed(FailureCause.SERVER_ERROR, answer), 1.0) is goes_on


def test_the_servers_are_asked_last() -> None:
    """What they say counts, and they are not asked when the run ends anyway."""
    asked: list[int] = []

    def changed() -> str:
        asked.append(1)
        return "it runs another one"

    stale = _stale(stale_syncs=1)
    stale.decide(GOOD, 0.0, in_step=True, changed=changed)
    decision = stale.decide(BUSY, 1.0, in_step=True, changed=changed)
    assert decision is not None
    assert (decision.goes_on, decision.why, asked) == (False, "it runs another one", [1])
    stale.decide(BUSY, 1.0, in_step=True, changed=changed)
    assert asked == [1]
