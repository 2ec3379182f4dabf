"""Which remedies are wanted: all are off unless asked for, and what contradicts itself is refused at once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

OFF = (False, None, "raise")
"""What the switch of a remedy that is off says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """What is done against failed syncs. Everything here is off by default, and then nothing is changed.

    All of it happens on the rank that sends the update, before the engine tells the other ranks of the outcome: they
    wait in its broadcast, so that all agree on how a sync ended.

    Args:
        validate: Look at each checkpoint before the request, without reading its data. One that is broken is not sent:
            SGLang answers it by dying, or with a mix of old and new weights (measured on 0.5.23). The engine gets an
            answer as of a server that refuses.
        publish_atomically: The engine writes into a folder beside ``shared_ckpt_path``, which is synced to the disk
            and takes its place in one step before the request: no server ever sees one that is half written. It
            needs the room of two checkpoints.
        retry: Send once more after a failure that this can mend, within ``deadline_seconds``.
        timeout: ``"auto"`` sets the request's time-out from the size of the checkpoint and how long the last ones took.
        pause: ``"retract"`` or ``"abort"`` pauses generation before an update, and continues it after, however the
            update ended. ``"retract"`` finishes running requests with the new weights, ``"abort"`` cuts them off.
        tag_weights: Updates that name no ``weight_version`` are sent with one that names the sync.
        safetensors: Checkpoints are saved as safetensors although the engine asks for pickle.
        serialize: No two updates at once go to one server, of all trainers of this host and user that ask for this;
            one that would wait for longer than ``deadline_seconds`` is not sent.
        on_failure: ``"continue_stale"`` lets ``update_policy`` return False instead of raising, on all ranks, while
            each server says in ``/model_info`` that it runs what a sync of this process has left there: at most
            ``stale_syncs`` times in a row, and at most ``stale_seconds`` after the last sync that succeeded.
        deadline_seconds: Longest time that pausing, flushing, waiting and sending again may add to a sync, above 0;
            continuing is tried for 5 s more when nothing is left. Half of the time-out of the process group's
            collectives, in which the other ranks wait, is never exceeded but by these 5 s.
        timeout_floor_seconds: Shortest time-out that ``timeout="auto"`` sets, above 0. An update waits for running
            requests: a time-out that is too short is an update that is applied when nobody looks.
        timeout_ceiling_seconds: The longest.
        timeout_headroom: How many times the longest of the last updates, scaled to the size, is waited for, 1 or more.
        stale_syncs: Failed syncs in a row, 1 or more; None for any number.
        stale_seconds: Seconds above 0; None for any time.

    Raises:
        ValueError: A value makes no sense, or two contradict each other.
    """

    validate: bool = False
    publish_atomically: bool = False
    retry: bool = False
    timeout: Literal["auto"] | None = None
    pause: Literal["retract", "abort"] | None = None
    tag_weights: bool = False
    safetensors: bool = False
    serialize: bool = False
    on_failure: Literal["raise", "continue_stale"] = "raise"
    deadline_seconds: float = 120.0
    timeout_floor_seconds: float = 60.0
    timeout_ceiling_seconds: float = 1800.0
    timeout_headroom: float = 4.0
    stale_syncs: int | None = None
    stale_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in SWITCHES:
            allowed = CHOICES.get(name, (False, True))
            value = getattr(self, name)
            if not any(value is one or (isinstance(value, str) and value == one) for one in allowed):
                raise ValueError(f"{name}={value!r}: write {_or(allowed)}")
        for name, (minimum, exclusive) in _NUMBERS.items():
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            number = isinstance(value, int) or (isinstance(value, float) and name not in _WHOLE)
            if (
                not number
                or isinstance(value, bool)
                or value == math.inf
                or not (value > minimum or (value == minimum and not exclusive))
            ):
                what = "a whole number" if name in _WHOLE else "a number"
                raise ValueError(f"{name}={value!r}: write {what} {'above' if exclusive else 'of at least'} {minimum}")
        if self.timeout_ceiling_seconds < self.timeout_floor_seconds:
            raise ValueError(
                f"timeout_ceiling_seconds={self.timeout_ceiling_seconds} is below "
                f"timeout_floor_seconds={self.timeout_floor_seconds}: raise the one or lower the other"
            )
        bounded = self.stale_syncs is not None or self.stale_seconds is not None
        if self.on_failure == "continue_stale" and not bounded:
            raise ValueError('on_failure="continue_stale" wants a bound: give stale_syncs=3, say, or stale_seconds=600')
        if self.on_failure == "raise" and bounded:
            raise ValueError('stale_syncs and stale_seconds go with on_failure="continue_stale": add it, or leave them')

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the remedies that are on."""
        return tuple(name for name in SWITCHES if getattr(self, name) not in OFF)


CHOICES: dict[str, tuple[object, ...]] = {
    "timeout": (None, "auto"),
    "pause": (None, "retract", "abort"),
    "on_failure": ("raise", "continue_stale"),
}
"""Those that are more than on and off."""
_NUMBERS = {
    "deadline_seconds": (0, True),
    "timeout_floor_seconds": (0, True),
    "timeout_ceiling_seconds": (0, True),
    "timeout_headroom": (1, False),
    "stale_syncs": (1, False),
    "stale_seconds": (0, True),
}
_WHOLE = frozenset({"stale_syncs"})
_MAY_BE_NONE = frozenset({"stale_syncs", "stale_seconds"})
SWITCHES = tuple(one.name for one in fields(Remedies) if one.name not in _NUMBERS)
"""The remedies by name, in the order in which they are written down; the other fields are numbers for them."""
NUMBERS: dict[str, Callable[[str], float]] = {name: int if name in _WHOLE else float for name in _NUMBERS}


def _or(values: tuple[object, ...]) -> str:
    return " or ".join(repr(value) for value in values)
