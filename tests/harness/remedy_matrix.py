"""What each remedy buys: one fault a row, and what happens to the run, the server and its weights without and with it.

The README shows this table; tests go through it, row by row, on the stand-in and, where the fault can be made, on the
real SGLang.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sglang_telemetry import Event, Remedied, Remedies
from sglang_telemetry.testing import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """How a row ends.

    Args:
        run: ``goes on`` or ``ends``: does ``update_policy`` raise.
        server: ``lives``, ``died``, or ``is paused``.
        weights: ``new``, ``old`` (of the sync before), ``start``, or ``mixed``; None where the server is gone.
    """

    run: str
    server: str = "lives"
    weights: str | None

    def __str__(self) -> str:
        weights = "" if self.weights is None else f", weights {self.weights}"
        return f"run {self.run}, server {self.server}{weights}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault.

    Args:
        name: In words.
        remedies: What is switched on.
        without: How it ends without remedies.
        remedied: How it ends with them.
        content: The checkpoint that is saved, one of ``make_tiny_model``'s.
        faults: What the update meets, on the stand-in.
        restarts: The server is started again when it has died.
        real: It can be made on the real SGLang.
        timeout: The engine's, in seconds.
        said: What remedies tell in that sync, action and outcome, without those that tell of a good one.
    """

    name: str
    remedies: Remedies
    without: Ends
    remedied: Ends
    content: str = "v2"
    faults: tuple[Fault, ...] = ()
    restarts: bool = False
    real: bool = False
    timeout: float = 60.0
    said: tuple[str, ...] = ()

    @property
    def switched_on(self) -> str:
        """The remedies as they are written."""
        return ", ".join(f"`{name}`" for name in self.remedies.names)


def said(events: Iterable[Event]) -> list[str]:
    """What remedies told, action and outcome, in order."""
    return [f"{one.remedy.action} {one.remedy.outcome}" for one in events if isinstance(one, Remedied)]


OLD_SERVER = Ends(run="ends", weights="old")
NEW = Ends(run="goes on", weights="new")
DIED = Ends(run="ends", server="died", weights=None)
MATRIX: tuple[Row, ...] = (
    Row(
        name="the checkpoint is torn",
        remedies=Remedies(validate=True),
        content="truncated",
        without=DIED,
        remedied=OLD_SERVER,
        real=True,
        said=("validate refused",),
    ),
    Row(
        name="it is of another model",
        remedies=Remedies(validate=True),
        content="wrongshape",
        without=DIED,
        remedied=OLD_SERVER,
        real=True,
        said=("validate refused",),
    ),
    Row(
        name="a tensor is missing in it",
        remedies=Remedies(validate=True),
        content="missing",
        without=Ends(run="goes on", weights="mixed"),
        remedied=OLD_SERVER,
        real=True,
        said=("validate refused",),
    ),
    Row(
        name="it is torn, and the run may go on",
        remedies=Remedies(validate=True, on_failure="continue_stale", stale_syncs=3),
        content="truncated",
        without=DIED,
        remedied=Ends(run="goes on", weights="old"),
        real=True,
        said=("validate refused", "continue_stale done"),
    ),
    Row(
        name="a gateway refuses once (429)",
        remedies=Remedies(retry=True),
        faults=(Fault.RATE_LIMITED,),
        without=OLD_SERVER,
        remedied=NEW,
        said=("flush done", "retry done"),
    ),
    Row(
        name="the server's host does not see the files yet",
        remedies=Remedies(retry=True, deadline_seconds=4),
        faults=(Fault.PATH_NOT_VISIBLE,),
        without=OLD_SERVER,
        remedied=NEW,
        said=("wait done", "retry done"),
    ),
    Row(
        name="the server is killed during the update, and restarted",
        remedies=Remedies(retry=True),
        faults=(Fault.DIES_WITHOUT_ANSWER,),
        restarts=True,
        without=Ends(run="ends", weights="start"),
        remedied=NEW,
        said=("wait done", "retry done"),
    ),
    Row(
        name="the weights were taken, the cache was not flushed",
        remedies=Remedies(retry=True),
        faults=(Fault.BUSY_WEIGHTS_APPLIED,),
        without=Ends(run="ends", weights="new"),
        remedied=Ends(run="ends", weights="new"),
    ),
    Row(
        name="another update is at work (409)",
        remedies=Remedies(retry=True),
        faults=(Fault.UPDATE_IN_PROGRESS,),
        without=OLD_SERVER,
        remedied=OLD_SERVER,
    ),
    Row(
        name="the update takes longer than the time-out",
        remedies=Remedies(timeout="auto", timeout_floor_seconds=20),
        faults=(Fault.SLOW,),
        timeout=0.6,
        without=Ends(run="ends", weights="new"),
        remedied=NEW,
        said=("timeout done",),
    ),
    Row(
        name="the server refuses, and the run may go on",
        remedies=Remedies(on_failure="continue_stale", stale_syncs=3),
        faults=(Fault.OUT_OF_MEMORY,),
        without=OLD_SERVER,
        remedied=Ends(run="goes on", weights="old"),
        said=("continue_stale done",),
    ),
    Row(
        name="the server dies, and the run might go on",
        remedies=Remedies(on_failure="continue_stale", stale_syncs=3),
        faults=(Fault.DIES_WITHOUT_ANSWER,),
        without=DIED,
        remedied=DIED,
        said=("continue_stale refused",),
    ),
    Row(
        name="a refused update leaves generation paused",
        remedies=Remedies(pause="retract"),
        faults=(Fault.STAYS_PAUSED,),
        without=Ends(run="ends", server="is paused", weights="old"),
        remedied=OLD_SERVER,
        said=("pause done", "flush done", "release done"),
    ),
)
