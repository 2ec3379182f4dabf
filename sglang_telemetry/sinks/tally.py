"""The counts behind the metrics, as plain data: add an event, save, load, forget. No metrics library is needed here.

Counters and histograms belong to a run and outlive its processes; gauges of something that is going on are read off
the processes that live, so that they disappear with them.
"""

from dataclasses import replace

from sglang_telemetry import names
from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    CheckpointInspected,
    Event,
    Identity,
    PhaseStarted,
    ProcessEnded,
    ProcessLost,
    ProcessStarted,
    ProcessUnwatched,
    Remedied,
    RolloutsSeen,
    ServerSeen,
    SyncRecord,
    SyncResolved,
    SyncStarted,
    Target,
    TelemetryError,
    WatchedPath,
)
from sglang_telemetry.names import UPDATE_ROUTE, Action, Applied, Evidence, Exit, Outcome, Phase, Policy, Result
from sglang_telemetry.sinks import remedy_counts
from sglang_telemetry.sinks.process_state import ProcessKey, ProcessState, process_key
from sglang_telemetry.sinks.series import Exemplar, Labels, Series
from sglang_telemetry.text import server_of


class Tally(Series):
    """All counts of all runs in sight."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: dict[ProcessKey, ProcessState] = {}
        self.servers: dict[str, ServerSeen] = {}
        self.watched: WatchedPath | None = None

    def add(self, event: Event) -> None:
        """Count one event."""
        match event:
            case ProcessStarted():
                self._process_started(event)
            case SyncStarted():
                self._sync_started(event)
            case PhaseStarted():
                state = self._state(event.identity)
                if state.active:
                    state.phase = event.phase
                    state.phase_at = (state.last_start or 0.0) + event.offset_ns / 1e9
            case Remedied():
                self._remedied(event)
            case SyncRecord():
                self._sync_ended(event)
            case ProcessEnded() | ProcessLost():
                self._process_ended(event)
            case ProcessUnwatched():
                self._state(event.identity).alive = None
            case CheckpointInspected():
                self._inspected(event)
            case RolloutsSeen():
                for policy in Policy:
                    self.count(names.ROLLOUTS, (event.identity.run, policy.value), event.counts.get(policy.value, 0))
                self.count(names.ROLLOUTS_ABORTED, (event.identity.run,), event.aborted)
            case SyncResolved():
                self._resolved(event)
            case ServerSeen():
                self._server_seen(event)
            case WatchedPath():
                self.watched = event
            case TelemetryError():
                self.count(names.TELEMETRY_ERRORS, (event.component.value,), event.count)
                if event.count and event.at is not None:
                    self.stamp(names.TELEMETRY_LAST_ERROR, (event.component.value,), event.at)
            case _:
                pass

    def users(self) -> dict[str, list[ProcessState]]:
        """The servers that live runs sync to, each with the coordinators that do."""
        found: dict[str, list[ProcessState]] = {}
        for state in self.processes.values():
            if state.coordinator and state.alive is not False:
                for server in state.servers():
                    found.setdefault(server, []).append(state)
        return found

    def live_servers(self) -> dict[str, ServerSeen]:
        """What was seen last of those servers, since one of those coordinators lives."""
        found: dict[str, ServerSeen] = {}
        for server, states in sorted(self.users().items()):
            seen = self.servers.get(server)
            users = [state.identity for state in states if seen is not None and state.started_at <= seen.at]
            runs, starts = {one.run for one in users}, {(one.run, one.run_id) for one in users}
            if seen is not None and runs:
                found[server] = replace(
                    seen,
                    current={run: seen.current[run] for run in runs & seen.current.keys()},
                    confirmed={
                        run: sequence
                        for run, sequence in seen.confirmed.items()
                        if (run, seen.confirmed_of.get(run)) in starts
                    },
                )
        return found

    def targets(self) -> set[str]:
        """The servers that known runs sync to, also those that have ended."""
        return {server for state in self.processes.values() for server in state.servers()}

    def restarts(self, server: str) -> int:
        """Restarts of that server that were noticed."""
        return self.counters.get(names.SERVER_RESTARTS.name, {}).get((server,), 0)

    def forget(self, *, ended_before: float) -> bool:
        """Drop processes that ended before that Unix time, and runs and servers of which no process is left.

        Returns:
            There was something to forget.
        """
        over = [k for k, one in self.processes.items() if one.ended_at is not None and one.ended_at < ended_before]
        if not over:
            return False
        for key in over:
            del self.processes[key]
        runs = {key[0] for key in self.processes}
        servers = self.targets()
        self.servers = {server: seen for server, seen in self.servers.items() if server in servers}
        self.keep(runs, servers)
        return True

    def _process_started(self, event: ProcessStarted) -> None:
        key = process_key(event.identity)
        known = self.processes.get(key)
        if known is not None and known.alive is not False:  # the head of a further segment
            return
        self.processes[key] = ProcessState(
            identity=event.identity,
            started_at=event.at,
            alive=True,
            coordinator=event.coordinator,
            engine=event.engine,
            versions=dict(event.versions),
            target=event.target,
            given_interval=event.expected_interval_seconds,
            stale=0 if "on_failure" in event.remedies else None,
        )
        self.stamp(names.PROCESS_START, (event.identity.run, str(event.identity.rank)), event.at)
        for component in names.Component:
            self.count(names.TELEMETRY_ERRORS, (component.value,), 0)
        if event.coordinator and event.target.server is not None:
            self._born(event.identity.run, event.target)
        for how in Exit:
            self.count(names.PROCESS_EXITS, (event.identity.run, how.value), 0)
        remedy_counts.announce(self, event.identity.run, event.remedies)

    def _born(self, run: str, target: Target) -> None:
        """Every series of a target exists at 0 before its first failure, or increase() would miss that one."""
        labels = _target_labels(run, target)
        for cause in FailureCause:
            self.count(names.FAILURES, (*labels, cause.value), 0)
        for result in Result:
            self.count(names.ATTEMPTS, (*labels, result.value), 0)

    def _state(self, identity: Identity) -> ProcessState:
        key = process_key(identity)
        state = self.processes.get(key)
        if state is None:
            # The run id was agreed on after the start: the process is the one that started under another.
            for other, known in list(self.processes.items()):
                same = (other[0], *other[2:]) == (key[0], *key[2:])
                if same and known.alive is not False and known.sequence is None:
                    del self.processes[other]
                    known.identity = identity
                    self.processes[key] = known
                    return known
            state = self.processes[key] = ProcessState(identity=identity, started_at=0.0, alive=True)
        return state

    def _sync_started(self, event: SyncStarted) -> None:
        state = self._state(event.identity)
        if state.last_start is not None and event.at > state.last_start:
            state.intervals.append(event.at - state.last_start)
            if state.last_duration is not None:
                state.step_share = min(1.0, state.last_duration / (event.at - state.last_start))
        state.coordinator, state.target = event.coordinator, event.target
        state.active, state.sequence, state.last_start = True, event.sequence, event.at
        state.phase, state.phase_at = Phase.SETUP, event.at
        self.stamps.setdefault(names.LAST_START.name, {})[(event.identity.run, str(event.identity.rank))] = event.at
        if event.coordinator:
            self._born(event.identity.run, event.target)

    def _remedied(self, event: Remedied) -> None:
        remedy_counts.count(self, event)
        state, server = self._state(event.identity), event.target.server
        if server is not None and server not in state.servers():  # of several, before the sync has ended
            state.beside = (*state.beside, server)
        if (event.remedy.action, event.remedy.outcome) == (Action.CONTINUE_STALE, Outcome.DONE):
            state.stale = (state.stale or 0) + 1

    def _sync_ended(self, record: SyncRecord) -> None:
        run, rank = record.identity.run, str(record.identity.rank)
        state = self._state(record.identity)
        seconds = record.duration_ns / 1e9
        state.active, state.phase, state.phase_at = False, None, None
        state.sequence, state.last_result, state.last_duration = record.sequence, record.result, seconds
        phases = record.phase_seconds()
        waited = phases.get(Phase.BROADCAST, 0.0) + phases.get(Phase.BARRIER, 0.0)
        self.observe(names.RANK_WAIT, (run, rank), waited)
        if not record.coordinator:
            return
        state.last_phases = {phase.value: spent for phase, spent in phases.items()}
        labels = _target_labels(run, record.target)
        self._born(run, record.target)
        self.observe(
            names.DURATION,
            (*labels, record.result.value),
            seconds,
            Exemplar(trace_id=record.trace_id, value=seconds, at=record.ended_at),
        )
        for phase, spent in phases.items():
            self.observe(names.PHASE_DURATION, (run, phase.value), spent)
        self.count(names.ATTEMPTS, (*labels, record.result.value), 1)
        self.count(names.ATTEMPTS, (*labels, Result.FAILURE.value), max(0, record.attempts - 1))
        server = record.target.server or ""
        if record.result is Result.SUCCESS:
            self.stamp(names.LAST_SUCCESS, (run, server), record.ended_at)
            state.stale = None if state.stale is None else 0
        elif record.result is Result.FAILURE:
            cause = record.cause or FailureCause.UNKNOWN
            self._failed(run, record.target, cause, record.ended_at, record.trace_id)
        sent_to = [server_of(one.url) for one in record.exchanges if UPDATE_ROUTE in one.url]
        others = dict.fromkeys((record.target.server, *sent_to))
        state.beside = tuple(one for one in others if one is not None and one != state.target.server)
        if record.checkpoint is not None:
            state.shared_path = record.checkpoint
            if record.checkpoint.bytes and record.checkpoint.fault is None:
                state.payload_bytes = record.checkpoint.bytes
        if record.weights_applied is Applied.YES:
            state.published = record.sequence

    def _process_ended(self, event: ProcessEnded | ProcessLost) -> None:
        state = self._state(event.identity)
        if state.alive is False:
            return
        was_active = state.active
        state.alive, state.ended_at, state.how = False, event.at, event.how
        state.active, state.phase, state.phase_at = False, None, None
        run = event.identity.run
        self.count(names.PROCESS_EXITS, (run, event.how.value), 1)
        self.stamp(names.PROCESS_LAST_EXIT, (run, event.how.value), event.at)
        if isinstance(event, ProcessLost) and was_active and state.coordinator and event.result is not None:
            self.count(names.ATTEMPTS, (*_target_labels(run, state.target), event.result.value), 1)
            if event.result is Result.FAILURE:
                trace_id = event.sync.trace_id if event.sync is not None else None
                self._failed(run, state.target, FailureCause.TRAINER_LOST, event.at, trace_id)

    def _inspected(self, event: CheckpointInspected) -> None:
        state = self._state(event.identity)
        if event.same is not None:
            state.unchanged = (state.unchanged or 0) + 1 if event.unchanged else 0
        if event.mixed:
            self._not_applied(event)

    def _resolved(self, event: SyncResolved) -> None:
        labels = (event.identity.run, event.target.server or "", event.claimed.value, event.applied.value)
        self.observe(
            names.CONFIRMATION_DELAY,
            labels,
            event.delay_seconds,
            Exemplar(trace_id=event.trace_id, value=event.delay_seconds, at=event.at),
        )
        state = self.processes.get(process_key(event.identity))
        if event.applied is Applied.YES:
            if state is not None and state.alive is not False:
                state.published = max(state.published or 0, event.sequence)
        elif event.claimed is Applied.YES and event.evidence is not Evidence.CHECKPOINT:  # that was counted when found
            self._not_applied(event)

    def _not_applied(self, event: CheckpointInspected | SyncResolved) -> None:
        """Counted, and no stamp of a failed sync: the page for this is that of the server that is not current."""
        labels = _target_labels(event.identity.run, event.target)
        self.count(names.FAILURES, (*labels, FailureCause.NOT_APPLIED.value), 1)

    def _server_seen(self, event: ServerSeen) -> None:
        self.servers[event.server] = event
        self.count(names.SERVER_RESTARTS, (event.server,), int(event.restarted))
        self.count(names.SERVER_WENT_BACK, (event.server,), int(event.went_back))
        if event.restarted:
            self.stamp(names.SERVER_LAST_RESTART, (event.server,), event.at)

    def _failed(self, run: str, target: Target, cause: FailureCause, at: float, trace_id: str | None) -> None:
        self.count(names.FAILURES, (*_target_labels(run, target), cause.value), 1)
        labels = (run, target.server or "", cause.value)
        self.stamp(names.LAST_FAILURE, labels, at)
        if trace_id is None or self.stamps[names.LAST_FAILURE.name][labels] != at:  # one that is told late
            return
        traces = self.stamps.setdefault(names.LAST_FAILURE_TRACE.name, {})
        for known in [known for known in traces if known[:3] == labels]:
            del traces[known]
        traces[(*labels, trace_id)] = at


def _target_labels(run: str, target: Target) -> Labels:
    return (run, target.server or "", target.transport.value)
