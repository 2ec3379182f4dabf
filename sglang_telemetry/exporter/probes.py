"""Looks at the servers that live runs sync to: whom, when, and what the metrics are told of it.

The one decision: each look has a thread of its own, so that a server that does not answer delays nobody: not the other
servers, not a scrape, not the reading of journals, not the end of the exporter. The threads are daemons, and no lock
is held while a server is asked. What was written to the journals before a look ended is read before it is judged, so
that no sync that it could have seen is missing.
"""

import copy
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from sglang_telemetry.events import (
    CheckpointInspected,
    Event,
    Identity,
    ProcessEnded,
    ProcessLost,
    Remedied,
    ServerSeen,
    SyncRecord,
    SyncResolved,
)
from sglang_telemetry.exporter.per_server import of_each_server
from sglang_telemetry.names import Component
from sglang_telemetry.server_truth.client import Look, Reach, look
from sglang_telemetry.server_truth.keys import Keys
from sglang_telemetry.server_truth.reconcile import Resolved, ServerState
from sglang_telemetry.sinks.tally import Tally

TICK_SECONDS = 0.25
MAX_AT_ONCE = 8
VERSION_SECONDS = 300.0
"""Asking for version and start options can cost a server something, and they change with a restart only."""
UNTOLD_SECONDS = 30.0
"""The same where the server did not tell, as during a load."""

NO_CHECKSUM_SECONDS = 3600.0
"""How long a server is not asked for its checksum again that has none, or wants a key."""
SLOW_SECONDS = 1.0
"""The checksum goes through the scheduler, which generates nothing meanwhile: one that takes longer costs too much."""
SLOW_PAUSE_SECONDS = 10.0
"""How long a server is not asked again whose checksum was slow, and twice as long each time: a load that goes on, as
after a client that gave up, is over soon; a model that is too big for it stays."""

InFlight = tuple[float, ...]


class Host(Protocol):
    """What probes need of the exporter; each call may wait for its lock, none for a server."""

    def targets(self) -> Mapping[str, InFlight]:
        """The servers that live runs sync to, each with the Unix times at which the syncs began that go on now."""

    def catch_up(self) -> None:
        """Read what was written to the journals up to now."""

    def tell(self, event: Event, *, lasting: bool) -> None:
        """Give an event to the sinks; ``lasting`` when there is something new to be saved."""

    def failed(self, error: Exception) -> None:
        """Count an error of ours."""


class Looking(Protocol):
    """How a server is looked at: :func:`~sglang_telemetry.server_truth.client.look`."""

    def __call__(self, url: str, *, info: bool, version: bool, checksum: bool, keys: Keys) -> Look:
        """Look once, for a bounded time."""


class Probes:
    """Asks the servers; as a sink it learns of the syncs that have ended.

    Args:
        host: The exporter.
        seconds: From one look at a server to the next; 0 asks nobody.
        keys: What the servers want to be shown.
        checksums: Ask which bytes are loaded, where the server tells.
        states: What was known before a restart of the exporter.
        now: Unix seconds.
        clock: Monotonic seconds.
        looking: How a server is looked at.
    """

    component = Component.EXPORTER

    def __init__(
        self,
        host: Host,
        *,
        seconds: float,
        keys: Callable[[], Keys] = Keys,
        checksums: bool = True,
        states: Iterable[ServerState] = (),
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        looking: Looking = look,
    ) -> None:
        self._host, self._seconds, self._looking = host, seconds, looking
        self._now, self._clock = now, clock
        self._keys, self._checksums = keys, checksums
        self._states = {state.server: state for state in states}
        self._next: dict[str, float] = {}
        self._version_at: dict[str, float] = {}
        self._checksum_at: dict[str, float] = {}
        self._slow: dict[str, int] = {}
        self._busy: set[str] = set()
        self._told: set[tuple[str, type]] = set()
        self._lock = threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()

    def start(self) -> None:
        """Go on in the background."""
        if self._seconds > 0:
            threading.Thread(target=self._loop, name="probes", daemon=True).start()

    def close(self) -> None:
        """Begin no look any more; nobody waits for those that are under way, and they tell nothing."""
        self._stop.set()
        self._wake.set()

    def emit(self, event: Event) -> None:
        """Learn of a sync that has ended, and look at its server soon."""
        match event:
            case SyncRecord() if event.coordinator:
                self._sync_ended(event)
            case CheckpointInspected():
                with self._lock:  # one that went to several servers is known to each of them
                    servers = [server for server, state in self._states.items() if state.note_inspected(event)]
                for server in servers:
                    self._soon(server)
            case Remedied() if event.target.server is not None:
                with self._lock:
                    self._state(event.target.server).paused.note(event)
            case ProcessEnded():
                self._gone(event.identity)
            case ProcessLost():
                self._gone(event.identity)
                if event.sync is not None and event.sync.coordinator:
                    self._unknown(event.sync.target.server, event.identity.run, event.sync.at, event.at)

    def saved(self) -> list[ServerState]:
        """All that is known, to be written down."""
        with self._lock:
            return copy.deepcopy(list(self._states.values()))

    def left_paused(self) -> list[str]:
        """Servers that a trainer left paused which is gone: they are looked at until they are ready."""
        with self._lock:
            return [server for server, state in self._states.items() if state.paused.any_left]

    def forget(self, *, but: set[str]) -> None:
        """Forget the servers that no run uses any more."""
        with self._lock:
            self._states = {server: state for server, state in self._states.items() if server in but}

    def due(self) -> list[str]:
        """The servers to look at now, those that have waited longest first."""
        targets, now = self._host.targets(), self._clock()
        with self._lock:
            at = {server: self._next.get(server, 0.0) for server in targets if server not in self._busy}
        return sorted((server for server in at if at[server] <= now), key=lambda server: at[server])

    def look_at(self, server: str) -> None:
        """Look at one server now, and tell what was found."""
        in_flight = self._host.targets().get(server)
        if in_flight is None:
            return
        with self._lock:
            state = self._state(server)
            self._next[server] = self._clock() + self._seconds
            url = state.url or f"http://{server}"
            # During a sync only what costs nothing: the scheduler is busy, and the answers would mean nothing.
            version = not in_flight and (
                state.gone_at is not None or self._clock() >= self._version_at.get(server, 0.0)
            )
            checksum = self._checksums and not in_flight and self._clock() >= self._checksum_at.get(server, 0.0)
            checksum = checksum and (state.gone_at is not None or state.wants_checksum(self._now(), asking=version))
        began_at, began = self._now(), self._clock()
        found = self._looking(url, info=not in_flight, version=version, checksum=checksum, keys=self._keys())
        ended_at = began_at + self._clock() - began
        self._host.catch_up()
        in_flight_now = self._host.targets().get(server)
        if in_flight_now is None or self._stop.is_set():
            return
        up = found.reach is Reach.ANSWERED
        with self._lock:
            before = state.lasting()
            noticed = state.note_look(found, began_at=began_at, ended_at=ended_at, in_flight=in_flight_now)
            if version and up:
                untold = found.started_with is None
                self._version_at[server] = self._clock() + (UNTOLD_SECONDS if untold else VERSION_SECONDS)
            elif noticed.restarted:  # noticed by this look: the next one, soon, asks which version it is now
                self._version_at[server] = self._next[server] = 0.0
            if noticed.restarted:
                self._checksum_at[server] = 0.0
            elif checksum and up:
                self._checksum_at[server] = self._clock() + self._pause(server, found)
            told = up and (found.info is not None or bool(in_flight) or bool(in_flight_now))
            seen = ServerSeen(
                server=server,
                at=ended_at,
                up=up,
                ready=found.ready,
                version=state.version,
                restarted=noticed.restarted,
                went_back=noticed.went_back,
                current=state.current() if told else {},
                confirmed={run: version.sequence for run, version in state.confirmed.items()},
                confirmed_of={run: version.run_id for run, version in state.confirmed.items()},
                left_paused=state.paused.left() if up else (),
                newly_left_paused=noticed.left_paused,
                released=state.paused.released(),
            )
            lasting = noticed.restarted or state.lasting() != before
        for one in noticed.resolved:  # first, so that nothing is confirmed that is not published
            self._host.tell(_event(one, found, ended_at), lasting=True)
        self._host.tell(seen, lasting=lasting)

    def _pause(self, server: str, found: Look) -> float:
        """Seconds until the checksum may be asked for again, after it was."""
        fast = found.checksum is not None and found.checksum.seconds <= SLOW_SECONDS
        slow = self._slow[server] = 0 if fast else self._slow.get(server, 0) + 1
        if fast:
            return 0.0
        no_time = found.checksum is not None or found.checksum_status is None
        return min(NO_CHECKSUM_SECONDS, SLOW_PAUSE_SECONDS * 2 ** (slow - 1)) if no_time else NO_CHECKSUM_SECONDS

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                self._begin()
            except Exception as error:
                self._failed("", error)
            self._wake.wait(TICK_SECONDS)
            self._wake.clear()

    def _begin(self) -> None:
        for server in self.due():
            with self._lock:
                if len(self._busy) >= MAX_AT_ONCE:
                    return
                self._busy.add(server)
            threading.Thread(target=self._work, args=(server,), name=f"probe {server}", daemon=True).start()

    def _work(self, server: str) -> None:
        try:
            self.look_at(server)
        except Exception as error:
            self._failed(server, error)
        finally:
            with self._lock:
                self._busy.discard(server)

    def _failed(self, server: str, error: Exception) -> None:
        """Said once a server and kind: it would come again with each look."""
        if (server, type(error)) not in self._told and not self._stop.is_set():
            self._told.add((server, type(error)))
            self._host.failed(error)

    def _sync_ended(self, record: SyncRecord) -> None:
        for url, of_server in of_each_server(record):
            server = of_server.target.server
            if server is None:
                continue
            with self._lock:
                state = self._state(server)
                state.url = url or state.url
                state.note_sync(of_server)
            self._soon(server)

    def _gone(self, identity: Identity) -> None:
        with self._lock:
            servers = [server for server, state in self._states.items() if state.paused.gone(identity)]
        for server in servers:
            self._soon(server)

    def _unknown(self, server: str | None, run: str, began_at: float, ended_at: float) -> None:
        if server is not None:
            with self._lock:
                self._state(server).note_unknown(run, began_at=began_at, ended_at=ended_at)
            self._soon(server)

    def _soon(self, server: str) -> None:
        self._next[server] = 0.0
        self._wake.set()

    def _state(self, server: str) -> ServerState:
        return self._states.setdefault(server, ServerState(server=server))


def targets_of(tally: Tally) -> dict[str, InFlight]:
    """The servers that live runs sync to, each with the Unix times at which the syncs began that go on now."""
    return {
        server: tuple(state.last_start for state in states if state.active and state.last_start is not None)
        for server, states in tally.users().items()
    }


def _event(one: Resolved, look: Look, at: float) -> SyncResolved:
    info = look.info
    claim = one.claim
    return SyncResolved(
        identity=claim.identity,
        sequence=claim.sequence,
        trace_id=claim.trace_id,
        target=claim.target,
        ended_at=one.ended_at,
        at=at,
        claimed=claim.claimed,
        applied=one.applied,
        evidence=one.evidence,
        shown="" if info is None else f"weight_version {info.weight_version!r}, model_path {info.model_path}",
    )
