"""What went wrong in one sync on one rank: kept while it runs, and explained in its record when it has failed."""

import asyncio
from dataclasses import replace

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.classify import Evidence, classify, walk
from sglang_telemetry.events import Exchange, SyncRecord
from sglang_telemetry.instrument.updates import Updates, proxied
from sglang_telemetry.names import Phase, Result
from sglang_telemetry.text import clean

_CANCELLED = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


class Troubles:
    """Evidence against a sync.

    Args:
        updates: What it has sent.
    """

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._errors: list[tuple[Phase, BaseException]] = []
        self.printed: list[str] = []
        """What the engine printed."""
        self.reported: str | None = None
        """What the caller says of it."""

    def saw(self, error: BaseException, phase: Phase) -> None:
        """An exception passed a seam; one that passes several is kept once."""
        if all(error is not seen for _, seen in self._errors):
            self._errors.append((phase, error))

    def recognises(self, text: str, handled: BaseException | None) -> bool:
        """Will the record say what the engine printed?

        Args:
            text: What it printed.
            handled: The exception that it was handling.
        """
        if handled is not None and str(handled) and str(handled) in text:
            return True
        refusal = self._updates.refusal
        if refusal is not None:
            return refusal.text[:40] in text
        exchange = self._failed_exchange
        if exchange is None:
            return False
        body, status = exchange.response_text, exchange.status_code
        return bool(status and str(status) in text and (not body or body[:40] in text))

    def result(self, returned: object, raised: BaseException | None) -> Result:
        """How the sync ended.

        Args:
            returned: By ``update_policy``.
            raised: What left it.
        """
        if isinstance(raised, _CANCELLED):
            return Result.CANCELLED
        failed = raised is not None or returned is False or self._failed_exchange is not None
        if failed or self._updates.refusal is not None or self.reported is not None:
            return Result.FAILURE
        return Result.SUCCESS

    def explained(
        self, record: SyncRecord, raised: BaseException | None, phase: Phase, last_payload_bytes: int | None
    ) -> SyncRecord:
        """The record of a sync that failed, with cause and words; never raises.

        Args:
            record: Without them.
            raised: What left ``update_policy``.
            phase: The one that was open then.
            last_payload_bytes: Size of the last good checkpoint.
        """
        try:
            return self._explained(record, raised, phase, last_payload_bytes)
        except Exception as error:  # an exception whose text raises, say: it failed, and that is counted
            told = f"{type(error).__name__} while it was explained"
            kind = type(raised).__name__ if raised is not None else "failure"
            return replace(record, cause=FailureCause.UNKNOWN, error_type=kind, error_text=told)

    def clear(self) -> None:
        """Let go of exceptions, which hold their frames."""
        self._errors.clear()
        self._updates.clear()

    @property
    def _failed_exchange(self) -> Exchange | None:
        recorded = self._updates.decisive()[1]
        return recorded.exchange if recorded is not None and recorded.failed else None

    def _explained(
        self, record: SyncRecord, raised: BaseException | None, phase: Phase, last_payload_bytes: int | None
    ) -> SyncRecord:
        refusal = self._updates.refusal
        if refusal is not None:
            return replace(
                record,
                cause=refusal.cause,
                failed_phase=refusal.phase,
                weights_applied=self._updates.refused,
                error_type=refusal.cause.value,
                error_text=refusal.text,
            )
        recorded = self._updates.decisive()[1]
        cause, applied = classify(
            Evidence(
                coordinator=record.coordinator,
                recorded=recorded,
                errors=tuple(self._errors),
                raised=raised,
                phase=phase,
                printed=tuple(self.printed),
                checkpoint=record.checkpoint,
                last_payload_bytes=last_payload_bytes,
                proxied=proxied(recorded),
                accepting=self._updates.accepting,
            )
        )
        error_type, error_text = self._error(raised)
        return replace(
            record,
            cause=cause,
            failed_phase=self._failed_phase(cause, phase),
            weights_applied=applied,
            error_type=error_type,
            error_text=error_text,
        )

    def _failed_phase(self, cause: FailureCause, phase: Phase) -> Phase | None:
        if self._failed_exchange is not None:
            return Phase.REQUEST
        if self._errors:
            return self._errors[0][0]
        return None if cause is FailureCause.PEER else phase

    def _error(self, raised: BaseException | None) -> tuple[str | None, str | None]:
        """``error.type`` and the text that says most."""
        exchange = self._failed_exchange
        if exchange is not None and exchange.error_type is not None:
            return exchange.error_type, exchange.error_text
        first = self._errors[0][1] if self._errors else raised
        if exchange is not None and exchange.status_code is not None:
            return str(exchange.status_code), None
        if first is None:
            text = self.reported or (self.printed[-1] if self.printed else None)
            return "failure", clean(text) if text else None
        return type(first).__name__, clean(": ".join(str(error) for error in list(walk(first))[:3] if str(error)))
