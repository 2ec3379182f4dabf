"""May a run go on after a failed sync, with rollouts of an earlier policy? Only while the server is known to run one.

A server that died or went away comes back with its START weights: that is not slightly stale, and the run ends as it
would without us.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sglang_telemetry.causes import FailureCause as Cause
from sglang_telemetry.events import SyncRecord
from sglang_telemetry.names import UPDATE_ROUTE, Result
from sglang_telemetry.remedies.options import Remedies

_LEAVE_THE_SERVER_AS_IT_WAS = frozenset(
    {
        Cause.DISK_FULL,
        Cause.OUT_OF_MEMORY,
        Cause.CHECKPOINT_WRITE,
        Cause.PROXY_INTERCEPTED,
        Cause.UNAUTHORIZED,
        Cause.TIMEOUT,
        Cause.CHECKPOINT_INVALID,
        Cause.PATH_NOT_VISIBLE,
        Cause.SERVER_BUSY,
        Cause.PROTOCOL,
        Cause.SERVER_ERROR,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Does the run go on, and why."""

    goes_on: bool
    why: str


class Stale:
    """Counts failed syncs since the last that succeeded; asked on the coordinator alone.

    Args:
        options: The bounds.
    """

    def __init__(self, options: Remedies) -> None:
        self._options = options
        self._succeeded_at: float | None = None
        self._failed = 0

    def decide(
        self, record: SyncRecord, now: float, *, in_step: bool, changed: Callable[[], str | None] = lambda: None
    ) -> Decision | None:
        """Take note of a sync; None unless it failed.

        Args:
            record: How it ended.
            now: Monotonic seconds.
            in_step: All ranks are past the engine's collectives, so that none of them waits for this one.
            changed: Asks the servers, if nothing else is against it: in words why one may not run weights of this run.
        """
        if record.result is Result.SUCCESS:
            self._succeeded_at, self._failed = now, 0
        if record.result is not Result.FAILURE:
            return None
        self._failed += 1
        refused = self._refused(record, now, in_step) or changed()
        if refused is not None:
            return Decision(goes_on=False, why=refused)
        return Decision(goes_on=True, why=f"training goes on with stale weights: {self._used(now)}")

    def _refused(self, record: SyncRecord, now: float, in_step: bool) -> str | None:
        options, cause = self._options, record.cause or Cause.UNKNOWN
        if self._succeeded_at is None:
            return "no sync of this process has succeeded: the weights of the server are not those of this run"
        if not in_step:
            return "the ranks are not in step: others may wait for this one"
        exchange = record.exchange
        if cause not in _LEAVE_THE_SERVER_AS_IT_WAS:
            return f"after {cause} the weights of the server are not known"
        no_answer = exchange is not None and exchange.status_code is None
        if no_answer and cause is not Cause.TIMEOUT and cause is not Cause.PROXY_INTERCEPTED:
            return "the server gave no answer: it comes back with its START weights"
        if any(one.status_code is None and UPDATE_ROUTE in one.url and one is not exchange for one in record.exchanges):
            return "a server gave no answer before this was sent again: it may be back with its START weights"
        if cause is Cause.SERVER_ERROR and exchange is not None and (exchange.status_code or 0) >= 500:
            return f"after a {exchange.status_code} the server may be dying, and comes back with its START weights"
        if options.stale_syncs is not None and self._failed > options.stale_syncs:
            return f"{self._failed} syncs in a row have failed, stale_syncs is {options.stale_syncs}"
        age = now - self._succeeded_at
        if options.stale_seconds is not None and age > options.stale_seconds:
            return f"the last sync that succeeded is {age:.0f} s ago, stale_seconds is {options.stale_seconds:g}"
        return None

    def _used(self, now: float) -> str:
        options, age = self._options, now - (self._succeeded_at or now)
        syncs = f"{self._failed} of {options.stale_syncs} syncs" if options.stale_syncs else f"{self._failed} syncs"
        seconds = f"{age:.0f} of {options.stale_seconds:g} s" if options.stale_seconds else f"{age:.0f} s"
        return f"{syncs}, {seconds} since the last that succeeded"
