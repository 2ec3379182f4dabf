"""Puts the parts together: identity, instrument, guarded sinks; and lets go of them at the end of the process."""

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sglang_telemetry.events import Identity, ProcessEnded, ProcessStarted, Target
from sglang_telemetry.identity import IdentitySource
from sglang_telemetry.instrument.engine import EngineInstrument, check
from sglang_telemetry.instrument.model import tensors_of
from sglang_telemetry.instrument.reading import Place, target_of
from sglang_telemetry.instrument.running import running
from sglang_telemetry.instrument.sync import Recorder, Sync
from sglang_telemetry.journal.folder import default_folder
from sglang_telemetry.names import LOCKS, Component, Env, Exit, Phase
from sglang_telemetry.platform import boot_id, pid_namespace, start_ticks
from sglang_telemetry.remedies.load import from_environ
from sglang_telemetry.remedies.options import Remedies
from sglang_telemetry.sinks.guard import Fanout
from sglang_telemetry.sinks.journal import JournalSink
from sglang_telemetry.sinks.log import LogSink
from sglang_telemetry.sinks.protocol import Sink
from sglang_telemetry.text import clean, server_of
from sglang_telemetry.timeline import Clock, SystemClock
from sglang_telemetry.version import own_version

if TYPE_CHECKING:
    from sglang_telemetry.preflight import Report

_OFF = frozenset({"1", "true", "yes", "on"})
_ON = frozenset({"", "0", "false", "no", "off"})


def instrument(
    engine: object,
    *,
    run: str | None = None,
    sinks: Sequence[Sink] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    run_id: str | None = None,
    expected_interval_seconds: float | None = None,
    propagate: bool = True,
    tag_weights: bool = False,
    inspect_checkpoints: bool = True,
    remedies: Remedies | None = None,
    clock: Clock | None = None,
) -> "Telemetry":
    """Observe every weight sync of a rollout engine; the engine stays the object it was.

    Args:
        engine: Anything with ``update_policy(model)``.
        run: Stable name of the training job; default ``SGLANG_TELEMETRY_RUN``, else the script's name.
        sinks: Where events go; default the log and the journal that the exporter reads.
        rank: Rank of this process; default ``RANK``, then torch.distributed, then 0.
        world_size: Number of ranks; default ``WORLD_SIZE``, then torch.distributed, then 1.
        run_id: Id of this start, the same on all ranks; default ``SGLANG_TELEMETRY_RUN_ID``, then one that the ranks
            share through the process group's store, then a random one.
        expected_interval_seconds: Seconds between two syncs, for staleness alerts; default the median of those seen.
        propagate: The engine's requests carry ``traceparent``, unless something else set it.
        tag_weights: Updates that name no ``weight_version`` are sent with one that names run, start and sequence, so
            that the server and its answers say which sync they run.
        inspect_checkpoints: A thread beside each update from disk looks whether the checkpoint is whole, and whether
            it is another than the one before; the sync does not wait for it.
        remedies: What is done against failed syncs; default ``SGLANG_TELEMETRY_REMEDIES[_FILE]``, else nothing.
        clock: Where time comes from; a test gives its own.

    Raises:
        TypeError: It has no ``update_policy``, or takes no attributes.
        RuntimeError: It is instrumented already.
        ValueError: ``rank``, ``world_size`` or the interval make no sense, or a remedy cannot work with this engine.
    """
    check(engine)
    telemetry = Telemetry(
        run=run,
        sinks=sinks,
        rank=rank,
        world_size=world_size,
        run_id=run_id,
        expected_interval_seconds=expected_interval_seconds,
        propagate=propagate,
        tag_weights=tag_weights,
        inspect_checkpoints=inspect_checkpoints,
        remedies=remedies,
        clock=clock,
        engine=type(engine).__name__,
        target=target_of(engine),
    )
    try:
        telemetry.attach(engine)
    except BaseException:
        telemetry.uninstrument()
        raise
    return telemetry


class Telemetry:
    """A handle on what is observed in this process; a context manager that stops observing at its end.

    Made by :func:`instrument`. A trainer without an engine object makes one itself and uses :meth:`sync`.

    Args:
        run: As for :func:`instrument`, and so are the others.
        url: Base URL of the server, for the ``server`` label of a trainer without an engine.
        engine: Class name of the engine.
        target: Where its syncs go.
    """

    def __init__(
        self,
        *,
        run: str | None = None,
        sinks: Sequence[Sink] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        run_id: str | None = None,
        expected_interval_seconds: float | None = None,
        propagate: bool = True,
        tag_weights: bool = False,
        inspect_checkpoints: bool = True,
        remedies: Remedies | None = None,
        clock: Clock | None = None,
        url: str | None = None,
        engine: str | None = None,
        target: Target | None = None,
    ) -> None:
        if expected_interval_seconds is not None and not expected_interval_seconds > 0:
            raise ValueError(f"expected_interval_seconds={expected_interval_seconds}: give seconds above 0, or None")
        source = IdentitySource(run=run, rank=rank, world_size=world_size, run_id=run_id)
        self._clock = clock or SystemClock()
        self.enabled, complaint = _enabled(os.environ)
        chosen: Sequence[Sink] = () if not self.enabled else default_sinks() if sinks is None else sinks
        self._fanout = Fanout(chosen)
        self._source = source
        self._target = target or Target(server=server_of(url))
        wanted = remedies if remedies is not None or not self.enabled else from_environ(os.environ)
        self._remedies = wanted or Remedies()
        tags = tag_weights or self._remedies.tag_weights
        self._recorder = Recorder(source, self._fanout.emit, self._clock, propagate=propagate, tag_weights=tags)
        self._inspects = inspect_checkpoints
        self._instrument: EngineInstrument | None = None
        self._pid = os.getpid()
        self._open = True
        self._fanout.identity = source.current()
        if complaint:
            self._fanout.error(Component.INSTRUMENT, ValueError(complaint))
        if self.enabled:
            self._guarded_start(engine, expected_interval_seconds)
            atexit.register(self._at_exit)

    @property
    def identity(self) -> Identity:
        """Who this process is, as of now."""
        return self._source.current()

    def attach(self, engine: object) -> None:
        """Wrap an engine's ``update_policy``; once a handle.

        Raises:
            ValueError: A remedy cannot work with this engine.
        """
        if self.enabled:
            self._instrument = EngineInstrument(
                engine,
                self._recorder,
                self._failed,
                inspect_checkpoints=self._inspects,
                remedies=self._remedies,
                locks=default_folder() / LOCKS,
            )

    def check(
        self,
        *,
        model: object = None,
        servers: Sequence[str] | None = None,
        shared_path: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
    ) -> "Report":
        """Look at everything that the first sync needs, as ``sglang-telemetry check`` does; takes seconds.

        Args:
            model: The model that is trained; its tensors are compared with the server's.
            servers: Addresses; default the engine's ``base_url``.
            shared_path: The checkpoint folder; default the engine's ``shared_ckpt_path``.
            dry_run: Also send updates that change nothing.

        Raises:
            ValueError: No server is known, a path makes no sense, or a key cannot be read.
        """
        from sglang_telemetry.preflight import run
        from sglang_telemetry.server_truth.keys import Keys

        place = self._instrument.place() if self._instrument is not None else Place()
        folder = shared_path if shared_path is not None else place.folder
        return run(
            servers if servers is not None else [url for url in (place.url,) if url],
            shared_path=os.path.abspath(folder) if folder is not None else None,
            model=tensors_of(model)[0] or None if model is not None else None,
            timeout_seconds=place.timeout_seconds,
            keys=Keys.from_environ(os.environ),
            dry_run=dry_run,
        )

    def uninstrument(self) -> None:
        """Take everything off the engine and close the sinks; calling it twice does nothing."""
        if not self._open:
            return
        self._open = False
        if self._instrument is not None:
            self._instrument.remove()
        atexit.unregister(self._at_exit)
        if self.enabled and os.getpid() == self._pid:
            self._say_good_bye(Exit.CLEAN)
        self._fanout.close()

    def __enter__(self) -> "Telemetry":
        return self

    def __exit__(self, *exception: object) -> None:
        self.uninstrument()

    @contextlib.contextmanager
    def sync(self, *, version: str | int | None = None, folder: str | None = None) -> Iterator["EditedSync"]:
        """Observe a block of your own code as one sync; an instrumented engine called inside becomes part of it.

        Args:
            version: Your name for the weights, such as the training step.
            folder: The checkpoint folder, for its size and its state.
        """
        sync = self._begin(version, folder)
        if sync is None:
            yield EditedSync(None, self._failed)
            return
        raised: BaseException | None = None
        try:
            with running(sync):
                yield EditedSync(sync, self._failed)
        except BaseException as error:
            raised = error
            raise
        finally:
            try:
                sync.end(raised=raised)
            except Exception as error:
                self._failed(error)
            del raised

    def _begin(self, version: str | int | None, folder: str | None) -> Sync | None:
        if not self.enabled or not self._open:
            return None
        try:
            return self._recorder.begin(
                self._target, version=None if version is None else clean(str(version), limit=256), folder=folder
            )
        except Exception as error:
            self._failed(error)
            return None

    def _failed(self, error: BaseException) -> None:
        self._fanout.error(Component.INSTRUMENT, error)

    def _guarded_start(self, engine: str | None, interval: float | None) -> None:
        try:
            self._fanout.emit(
                ProcessStarted(
                    identity=self._source.current(),
                    at=self._clock.wall(),
                    engine=engine,
                    target=self._target,
                    versions=_versions(),
                    boot_id=boot_id(),
                    pid_namespace=pid_namespace(),
                    pid_start_ticks=start_ticks(os.getpid()),
                    launch_id=os.environ.get(Env.LAUNCH_ID),
                    coordinator=self._source.is_coordinator() and self._source.current().rank == 0,
                    expected_interval_seconds=interval,
                    remedies=self._remedies.names,
                )
            )
        except Exception as error:
            self._failed(error)

    def _at_exit(self) -> None:
        """Say good-bye; a process that was killed cannot, and that is how the exporter knows."""
        if not self._open or os.getpid() != self._pid:
            return
        self._open = False
        failed = getattr(sys, "last_value", None) is not None
        if self._instrument is not None:
            self._instrument.stop_inspecting()
        self._say_good_bye(Exit.FAILED if failed else Exit.CLEAN)
        self._fanout.close()

    def _say_good_bye(self, how: Exit) -> None:
        try:
            self._recorder.rollouts.flush(self._recorder.sequence)
        except Exception as error:
            self._failed(error)
        self._fanout.emit(ProcessEnded(identity=self.identity, at=self._clock.wall(), how=how))


class EditedSync:
    """A sync that the trainer's own code reports."""

    def __init__(self, sync: Sync | None, failed: Callable[[BaseException], None]) -> None:
        self._sync = sync
        self._failed = failed

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block as one phase.

        Args:
            name: One of ``state_dict save request confirm broadcast barrier``; any other counts as ``other``.
        """
        phase = Phase(name) if name in set(Phase) else Phase.OTHER
        self._guarded(lambda sync: sync.mark(phase))
        try:
            yield
        except BaseException as error:
            seen = error
            self._guarded(lambda sync: sync.saw_error(seen, phase))
            raise
        self._guarded(lambda sync: sync.mark(Phase.OTHER))

    @property
    def traceparent(self) -> str | None:
        """The W3C header for a request of yours, as a part of the phase that is open; None when nothing is observed."""
        context = self._sync.context if self._sync is not None else None
        return context.traceparent if context is not None else None

    def fail(self, reason: str) -> None:
        """Report the sync as failed although no exception will leave the block."""
        self._guarded(lambda sync: sync.fail(reason))

    def _guarded(self, function: Callable[[Sync], None]) -> None:
        try:
            if self._sync is not None:
                function(self._sync)
        except Exception as error:
            self._failed(error)


def default_sinks() -> tuple[Sink, ...]:
    """Where events go unless told otherwise."""
    return (LogSink(), JournalSink())


def _enabled(environ: Mapping[str, str]) -> tuple[bool, str | None]:
    """Is observing on, and what is odd about how that was said."""
    value = environ.get(Env.DISABLED, "").strip().lower()
    if value in _OFF:
        return False, None
    if value in _ON:
        return True, None
    return True, f"{Env.DISABLED}={clean(value, limit=60)!r} is neither 1 nor 0: observing stays on"


def _versions() -> dict[str, str]:
    """Versions of what matters here, of modules that are imported already; nothing is imported for it."""
    own = own_version()
    found = {} if own is None else {"sglang-telemetry": own}
    for name in ("torch", "transformers", "requests"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found
