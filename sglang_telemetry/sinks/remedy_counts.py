"""What remedies did, by action and outcome, and the seconds it took.

Counted as each is told, and not from the sync's record: a trainer that dies in its sync leaves none.
"""

from collections.abc import Iterable

from sglang_telemetry import names
from sglang_telemetry.events import Remedied
from sglang_telemetry.names import REMEDY_ACTIONS, Outcome
from sglang_telemetry.sinks.series import Series


def announce(series: Series, run: str, remedies: Iterable[str]) -> None:
    """All that these can do exists at 0 before the first, or increase() would miss that one."""
    for action in (action for remedy in remedies for action in REMEDY_ACTIONS.get(remedy, ())):
        for outcome in Outcome:
            series.count(names.REMEDIES, (run, action.value, outcome.value), 0)
        series.count(names.REMEDY_SECONDS, (run, action.value), 0)


def count(series: Series, event: Remedied) -> None:
    """One that did something."""
    run, remedy = event.identity.run, event.remedy
    series.count(names.REMEDIES, (run, remedy.action.value, remedy.outcome.value), 1)
    series.count(names.REMEDY_SECONDS, (run, remedy.action.value), remedy.duration_ns)
