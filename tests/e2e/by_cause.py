"""Which alerts come of which cause, and which of them are silenced: what is tested and what ``alerts/README.md`` shows.

The one decision: a row has all alerts of its run, as Alertmanager has them when minutes have passed. That a trainer
ends because of a failed sync is no alert of its own (WeightSyncTrainerLost is for other ends); what comes only after an
hour of failures (a failure rate, a budget, a stale policy) needs many syncs and is none of this.
"""

from dataclasses import dataclass

from sglang_telemetry.causes import FailureCause as Cause

RECEIVERS = {"critical": "page", "warning": "chat", "info": "nobody"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert as it is told from others of its run.

    Args:
        name: Its ``alertname``.
        detail: The value of its label ``cause``, ``how`` or ``reason``, empty when it has none of these.
        severity: Who is told.
    """

    name: str
    detail: str = ""
    severity: str = "critical"

    @property
    def receiver(self) -> str:
        """Where Alertmanager sends it, by the example."""
        return RECEIVERS[self.severity]

    @classmethod
    def of(cls, labels: dict[str, str]) -> "Alert":
        """From the labels of an alert that Prometheus made."""
        detail = labels.get("cause") or labels.get("how") or labels.get("reason") or ""
        return cls(name=labels["alertname"], detail=detail, severity=labels["severity"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One failure and what comes of it.

    Args:
        run: Name of the run in the test, one a row.
        cause: Why the sync failed.
        then: What becomes of the run.
        sent: The alerts that somebody is told of, in any order.
        silenced: The alerts that Alertmanager holds back in the end; one that is in ``sent`` as well came first and is
            silenced by a later one.
        provoked: How the test makes it.
    """

    run: str
    cause: Cause
    then: str
    sent: tuple[Alert, ...]
    silenced: tuple[Alert, ...] = ()
    provoked: str


GONE = Alert(name="SGLangServerDown", detail="gone")
NEVER_UP = Alert(name="SGLangServerDown", detail="never_up")
LOST_WEIGHTS = Alert(name="SGLangServerLostWeights")
NOT_READY = Alert(name="SGLangServerNotReady")
LEFT_PAUSED = Alert(name="SGLangServerLeftPaused")
CONTINUED_STALE = Alert(name="WeightSyncContinuedStale", severity="warning")
NOT_APPLIED = Alert(name="WeightSyncNotApplied")
PATH_LOW = Alert(name="WeightSyncSharedPathLow", detail="bytes", severity="warning")


def failed(cause: Cause) -> Alert:
    """The alert that each failed sync is."""
    return Alert(name="WeightSyncFailed", detail=cause.value)


def _ends(cause: Cause, provoked: str) -> Row:
    """The trainer ends with the exception of the sync, as most do."""
    return Row(
        run=cause.value,
        cause=cause,
        then="the trainer ends with the exception",
        sent=(failed(cause),),
        provoked=provoked,
    )


def _goes_on(run: str, cause: Cause, then: str, provoked: str, *later: Alert, silenced: tuple[Alert, ...] = ()) -> Row:
    """The trainer catches the exception and lives on."""
    sent = (failed(cause), *later)
    return Row(run=run, cause=cause, then=then, sent=sent, silenced=silenced, provoked=provoked)


ROWS: tuple[Row, ...] = (
    Row(
        run="peer",
        cause=Cause.PEER,
        then="another rank is killed, so rank 0's barrier breaks and it ends with the exception",
        sent=(failed(Cause.PEER),),
        provoked="real: two torch ranks over gloo, SIGKILL of rank 1 before its barrier",
    ),
    _ends(Cause.DISK_FULL, "real: a tmpfs without a free byte"),
    _goes_on(
        "disk_full_goes_on",
        Cause.DISK_FULL,
        "the run goes on, and its earlier syncs were good",
        "real: a tmpfs that is filled after the first sync",
        PATH_LOW,
    ),
    _ends(Cause.OUT_OF_MEMORY, "real: the weights are gathered under a limit of the address space"),
    _ends(Cause.CHECKPOINT_WRITE, "real: a tmpfs that is mounted read-only"),
    _ends(Cause.PROXY_INTERCEPTED, "HTTP_PROXY names a proxy that is not let through: 503 with a page in HTML"),
    _ends(Cause.UNAUTHORIZED, "the server wants a key that the engine does not send: 401 (measured on 0.5.23)"),
    _ends(Cause.UNREACHABLE, "real: a port that nobody listens at"),
    _goes_on(
        "unreachable_goes_on",
        Cause.UNREACHABLE,
        "the run goes on, and the server never comes up",
        "real: a port that nobody listens at",
        NEVER_UP,
        silenced=(failed(Cause.UNREACHABLE),),
    ),
    _ends(Cause.SERVER_DIED, "the server's process is killed instead of an answer (measured on 0.5.23: a wrong shape)"),
    _goes_on(
        "server_died_goes_on",
        Cause.SERVER_DIED,
        "the run goes on, and the server stays down",
        "as above",
        GONE,
        silenced=(failed(Cause.SERVER_DIED),),
    ),
    _goes_on(
        "server_died_comes_back",
        Cause.SERVER_DIED,
        "the run goes on, and the server is back soon, with its start weights",
        "as above, after a good sync, and the server is started again",
        LOST_WEIGHTS,
    ),
    _ends(Cause.TIMEOUT, "the server answers after the engine's time-out (measured on 0.5.23: it takes the weights)"),
    _ends(Cause.CHECKPOINT_INVALID, "real: a file that is cut off, and the server dies of it (measured on 0.5.23)"),
    _goes_on(
        "checkpoint_invalid_goes_on",
        Cause.CHECKPOINT_INVALID,
        "the run goes on, and the server stays down",
        "as above",
        GONE,
    ),
    _ends(Cause.PATH_NOT_VISIBLE, "400 for a folder that is complete here (measured on 0.5.23: one it does not see)"),
    _ends(Cause.SERVER_BUSY, "400 after the weights were taken (measured on 0.5.23: requests still run)"),
    _goes_on(
        "server_busy_continues_stale",
        Cause.SERVER_BUSY,
        'the run goes on by the remedy `on_failure="continue_stale"`',
        "429 of a gateway, after a good sync",
        CONTINUED_STALE,
    ),
    _ends(Cause.PROTOCOL, "404 for the route (measured on 0.5.23: a route that it does not know)"),
    _ends(Cause.SERVER_ERROR, "503 without a body, as a router gives it"),
    _goes_on(
        "server_error_stays_paused",
        Cause.SERVER_ERROR,
        "the run goes on, and the server stays paused",
        "400 while paused (measured on 0.5.23: a failed update does not end the pause)",
        NOT_READY,
    ),
    Row(
        run="not_applied",
        cause=Cause.NOT_APPLIED,
        then="the run goes on",
        sent=(NOT_APPLIED,),
        provoked="200 and success, and nothing changed: a router that does not pass it on",
    ),
    Row(
        run="trainer_lost",
        cause=Cause.TRAINER_LOST,
        then="rank 0 is killed in the middle of the sync",
        sent=(failed(Cause.TRAINER_LOST),),
        provoked="real: SIGKILL while the request is out",
    ),
    Row(
        run="trainer_lost_while_paused",
        cause=Cause.TRAINER_LOST,
        then="rank 0, which paused the server by the remedy `pause`, is killed in the middle of the sync",
        sent=(failed(Cause.TRAINER_LOST), LEFT_PAUSED),
        provoked="as above",
    ),
    _ends(Cause.UNKNOWN, "real: the engine has an error of its own before it begins"),
)
