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

from sglang_telemetry.events import Event, ProcessLost, ServerSeen, SyncRecord
from sglang_telemetry.names import UPDATE_ROUTE, Component
from sglang_telemetry.server_truth.client import Look, Reach, look
from sglang_telemetry.server_truth.reconcile import ServerState
from sglang_telemetry.sinks.tally import Tally
from sglang_telemetry.text import server_of

TICK_SECONDS = 0.25
MAX_AT_ONCE = 8
VERSION_SECONDS = 300.0
"""Asking for the version can cost a server something, and it changes with a restart only."""

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

    def __call__(self, url: str, *, info: bool, version: bool) -> Look:
        """Look once, for a bounded time."""


class Probes:
    """Asks the servers; as a sink it learns of the syncs that have ended.

    Args:
        host: The exporter.
        seconds: From one look at a server to the next; 0 asks nobody.
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
        states: Iterable[ServerState] = (),
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        looking: Looking = look,
    ) -> None:
        self._host, self._seconds, self._looking = host, seconds, looking
        self._now, self._clock = now, clock
        self._states = {state.server: state for state in states}
        self._next: dict[str, float] = {}
        self._version_at: dict[str, float] = {}
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
            case ProcessLost() if event.sync is not None and event.sync.coordinator:
                self._unknown(event.sync.target.server, event.identity.run, event.sync.at, event.at)

    def saved(self) -> list[ServerState]:
        """All that is known, to be written down."""
        with self._lock:
            return copy.deepcopy(list(self._states.values()))

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
        began_at, began = self._now(), self._clock()
        found = self._looking(url, info=not in_flight, version=version)
        ended_at = began_at + self._clock() - began
        self._host.catch_up()
        in_flight_now = self._host.targets().get(server)
        if in_flight_now is None or self._stop.is_set():
            return
        with self._lock:
            before = state.lasting()
            restarted = state.note_look(found, began_at=began_at, ended_at=ended_at, in_flight=in_flight_now)
            if version and found.reach is Reach.ANSWERED:
                self._version_at[server] = self._clock() + VERSION_SECONDS
            elif restarted:  # noticed by this look: the next one, soon, asks which version it is now
                self._version_at[server] = self._next[server] = 0.0
            up = found.reach is Reach.ANSWERED
            told = up and (found.info is not None or bool(in_flight) or bool(in_flight_now))
            seen = ServerSeen(
                server=server,
                at=ended_at,
                up=up,
                ready=found.ready,
                version=state.version,
                restarted=restarted,
                current=state.current() if told else {},
            )
            lasting = restarted or state.lasting() != before
        self._host.tell(seen, lasting=lasting)

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
        server = record.target.server
        sent_to = {}
        for exchange in record.exchanges:
            base, route, _ = exchange.url.rpartition(UPDATE_ROUTE)
            if route and (place := server_of(exchange.url)) is not None:
                sent_to[place] = base
        if server is not None:
            with self._lock:
                state = self._state(server)
                state.url = sent_to.get(server, state.url)
                state.note_sync(record)
            self._soon(server)
        for other in sent_to.keys() - {server}:  # of many servers, the record says of one only whether it took them
            self._unknown(other, record.identity.run, record.started_at, record.ended_at)

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
