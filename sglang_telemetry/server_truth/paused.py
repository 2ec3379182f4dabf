"""Who paused a server, and whether it was left so.

A trainer that pauses generation around a sync and is killed in between leaves the server paused for ever (SGLang
0.5.23, measured). A server that says that it is ready is not paused, whoever says what. The journals of several
trainers are read one after the other: what counts is when something happened, not when it was read.
"""

from dataclasses import dataclass, field

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
        told: It, or an earlier one of the run, was told: its end is too.
    """

    by: Identity
    at: float
    left: bool = False
    seen: bool = False
    over: bool = False
    told: bool = False

    @property
    def is_left(self) -> bool:
        """Is nobody there any more who would end it?"""
        return self.left and not self.over


@dataclass(slots=True, kw_only=True)
class Pauses:
    """Those of one server.

    Args:
        by_run: The last one of each run.
        continued_at: When a trainer continued generation last, in Unix seconds.
    """

    by_run: dict[str, Paused] = field(default_factory=dict)
    continued_at: float = 0.0

    def note(self, event: Remedied) -> None:
        """A remedy of a trainer's did something with this server."""
        action, done = event.remedy.action, event.remedy.outcome is Outcome.DONE
        if action is Action.RELEASE and event.remedy.outcome is not Outcome.FAILED:  # it ends everybody's pause
            self.continued_at = max(self.continued_at, event.at)
            self.end(before=event.at)
        elif (action is Action.PAUSE and done) or action is Action.RELEASE:
            self._paused(event, left=action is Action.RELEASE)

    def gone(self, identity: Identity) -> bool:
        """A trainer process has ended; did it leave this server paused?"""
        one = self.by_run.get(identity.run)
        if one is None or one.over or _process(one.by) != _process(identity):
            return False
        one.left = True
        return True

    def looked(self, *, ready: bool | None, began_at: float) -> tuple[str, ...]:
        """What a look says: the runs that left it paused of which that was not known before.

        A live trainer that has paused it since is in its sync, and ends all pauses.

        Args:
            ready: What ``/ready`` said, None where it did not.
            began_at: Unix seconds of the look.
        """
        if ready:
            self.end(before=began_at)
        if ready is not False:
            return ()
        held_at = max((one.at for one in self.by_run.values() if not one.left and not one.over), default=0.0)
        newly = tuple(run for run, one in self.by_run.items() if one.is_left and not one.seen and not one.at < held_at)
        for run in newly:
            self.by_run[run].seen = self.by_run[run].told = True
        return newly

    def left(self) -> tuple[str, ...]:
        """The runs that left it paused."""
        return tuple(sorted(run for run, one in self.by_run.items() if one.seen and not one.over))

    def released(self) -> tuple[str, ...]:
        """The runs that did, before it was ready again or a live trainer of theirs had it in hand."""
        return tuple(sorted(run for run, one in self.by_run.items() if one.told and (one.over or not one.seen)))

    @property
    def any_left(self) -> bool:
        """Is one of them left, whether it was told or not?"""
        return any(one.is_left for one in self.by_run.values())

    def end(self, *, before: float = float("inf")) -> None:
        """Pauses of before that Unix time are over; those that were told are kept."""
        for run, one in list(self.by_run.items()):
            if one.at <= before:
                one.over = True
                if not one.told:
                    del self.by_run[run]

    def _paused(self, event: Remedied, *, left: bool) -> None:
        """It is paused, or may be and could not be continued: nobody tries that after a pause that was refused."""
        known = self.by_run.get(event.identity.run)
        if event.at <= self.continued_at or (known is not None and event.at < known.at):
            return
        if left and known is not None and not known.over:
            known.left = True
        else:
            told = known is not None and known.told
            self.by_run[event.identity.run] = Paused(by=event.identity, at=event.at, left=left, told=told)


def _process(identity: Identity) -> tuple[str, str, int]:
    """A pid alone is the same in each start of a container."""
    return identity.run_id, identity.host, identity.pid
