"""Who paused a server, and whether it was left so.

A trainer that pauses generation around a sync and is killed in between leaves the server paused for ever (SGLang
0.5.23, measured). A server that says that it is ready is not paused, whoever says what.
"""

from dataclasses import dataclass

from sglang_telemetry.events import Identity, Remedied
from sglang_telemetry.names import Action, Outcome


@dataclass(slots=True, kw_only=True)
class Paused:
    """A pause of which no end is known.

    Args:
        by: The trainer process.
        at: Unix seconds.
        left: The process is gone, or could not end it.
        seen: The server was seen not to be ready since then.
        over: That has ended; it is kept so that its end can be told.
    """

    by: Identity
    at: float
    left: bool = False
    seen: bool = False
    over: bool = False


def note(paused: dict[str, Paused], event: Remedied) -> None:
    """A remedy of a trainer's did something with this server; the pauses of its runs, by run, are kept up to date."""
    action, outcome, run = event.remedy.action, event.remedy.outcome, event.identity.run
    if action is Action.PAUSE and outcome is Outcome.DONE:
        paused[run] = Paused(by=event.identity, at=event.at)
    elif action is Action.RELEASE and outcome is Outcome.FAILED:
        if run in paused:
            paused[run].left = True
    elif action is Action.RELEASE:  # whoever continues generation ends all pauses
        end(paused, before=event.at)


def gone(paused: dict[str, Paused], identity: Identity) -> bool:
    """A trainer process has ended; did it leave this server paused?"""
    one = paused.get(identity.run)
    if one is None or one.over or (one.by.host, one.by.pid) != (identity.host, identity.pid):
        return False
    one.left = True
    return True


def looked(paused: dict[str, Paused], *, ready: bool | None, began_at: float) -> tuple[str, ...]:
    """What a look says: the runs that left it paused, and of which that was not known before.

    Args:
        ready: What ``/ready`` said, None where it did not.
        began_at: Unix seconds of the look.
    """
    if ready:
        end(paused, before=began_at)
    newly = tuple(run for run, one in paused.items() if is_left(one) and not one.seen) if ready is False else ()
    for run in newly:
        paused[run].seen = True
    return newly


def left(paused: dict[str, Paused]) -> tuple[str, ...]:
    """The runs that left it paused."""
    return tuple(sorted(run for run, one in paused.items() if one.seen and not one.over))


def released(paused: dict[str, Paused]) -> tuple[str, ...]:
    """The runs that did, before it was ready again."""
    return tuple(sorted(run for run, one in paused.items() if one.seen and one.over))


def is_left(one: Paused) -> bool:
    """Is nobody there any more who would end this pause?"""
    return one.left and not one.over


def end(paused: dict[str, Paused], *, before: float = float("inf")) -> None:
    """Pauses of before that Unix time are over; those that were told are kept."""
    for run, one in list(paused.items()):
        if one.at <= before:
            one.over = True
            if not one.seen:
                del paused[run]
