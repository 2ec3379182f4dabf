"""The remedies of one engine: can they work with it, and where they take hold of a sync.

Only the rank that sends the update does anything; the others learn the outcome from the engine's own broadcast, and,
for ``on_failure``, from the process group's key-value store.
"""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sglang_telemetry.checkpoint import folder as checkpoint
from sglang_telemetry.checkpoint.validate import Verdict
from sglang_telemetry.events import SyncRecord
from sglang_telemetry.instrument import collectives
from sglang_telemetry.instrument.engine_folder import FOLDER, EngineFolder
from sglang_telemetry.instrument.expectation import headers_of, verdict_for
from sglang_telemetry.instrument.http import Around, Sender, path_in, transport_of
from sglang_telemetry.instrument.own_pauses import OwnPauses
from sglang_telemetry.instrument.reading import server_at
from sglang_telemetry.instrument.remediable import BY_REQUEST, check, check_routes
from sglang_telemetry.instrument.seams import Restore
from sglang_telemetry.instrument.sync import Recorder, Sync
from sglang_telemetry.names import Action, Outcome, Result, Transport
from sglang_telemetry.remedies.client import Client
from sglang_telemetry.remedies.course import Course, Means
from sglang_telemetry.remedies.host_lock import HostLock
from sglang_telemetry.remedies.options import Remedies
from sglang_telemetry.remedies.safetensors import as_safetensors, remove_safetensors
from sglang_telemetry.remedies.stale import Stale
from sglang_telemetry.remedies.timeout import AutoTimeout


class EngineRemedies:
    """Remedies as one engine has them.

    Args:
        options: Which ones.
        engine: Its attributes are read: ``http``, ``base_url``, ``shared_ckpt_path``.
        recorder: Of its syncs.
        on_error: Told of every error of ours; never raises.
        locks: Folder of the locks that trainers of this host share.
        asynchronous: Its ``update_policy`` is a coroutine function.

    Raises:
        ValueError: One of them cannot work with this engine, this folder, or this server.
    """

    def __init__(
        self,
        options: Remedies,
        engine: Any,
        recorder: Recorder,
        on_error: Callable[[BaseException], None],
        locks: Path,
        *,
        asynchronous: bool = False,
    ) -> None:
        self._options, self._engine, self._recorder, self._on_error = options, engine, recorder, on_error
        coordinator = recorder.identity.is_coordinator()
        check(options, engine, asynchronous=asynchronous)
        if coordinator:
            check_routes(options, engine)
        self._folder = EngineFolder(engine) if options.publish_atomically else None
        if self._folder is not None and coordinator:
            self._folder.recover()
        self._timeout = AutoTimeout(options)
        self._own_pauses = OwnPauses()
        self._lock = functools.partial(HostLock, locks)
        self._stale = Stale(options) if options.on_failure == "continue_stale" else None
        self._pickled: set[type] = set()
        self._passed = 0

    def begin(self, sync: Sync) -> Restore | None:
        """A sync has begun on the rank that sends: where the engine saves to."""
        if self._folder is None or not self._recorder.identity.is_coordinator():
            return None
        began = sync.offset_ns()
        try:
            return self._folder.begin()
        except OSError as error:  # it saves where it would without us
            sync.remedied(Action.PUBLISH, Outcome.FAILED, began, str(error))
            return None

    def around(self, sync: Sync | None, url: str, sender: Sender, model: Any) -> Around | None:
        """What is done around a request of the engine's; None where nothing is wanted.

        Args:
            sync: The request is an update of this sync; None for all others.
            url: Where it goes to.
            sender: Sends it.
            model: What is synced.
        """
        if not any(name in BY_REQUEST for name in self._options.names):
            return None
        server = server_at(url, sender.client, self._engine)
        if sync is None:
            return self._own_pauses.around(url, server) if self._options.pause is not None else None
        disk = transport_of(url) is Transport.DISK
        means = Means(
            options=self._options,
            timeout=self._timeout,
            lock=self._lock,
            publishing=self._folder if disk and self._folder is not None and self._folder.begun else None,
            verdict=functools.partial(self._verdict, model),
            failed=self._on_error,
            collective_seconds=collectives.time_out_seconds(),
        )

        def run(send: Callable[[dict[str, Any]], Any], arguments: dict[str, Any]) -> Any:
            client = Client(url, arguments, post=sender.post, get=sender.client.get, kind=sender.client)
            paused = server in self._own_pauses
            course = Course(means, sync, client, server=server, disk=disk, send=send, paused=paused)
            return course.run(arguments)

        return run

    def save(self, sync: Sync, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Save a model as is wanted."""
        kind = type(getattr(call, "__self__", None))
        changed = (
            as_safetensors(call, args, kwargs) if self._options.safetensors and kind not in self._pickled else None
        )
        if changed is None:
            return call(*args, **kwargs)
        began = sync.offset_ns()
        try:
            saved = call(*changed[0], **changed[1])
        except OSError:  # a disk that is full is full for the other format too
            raise
        except Exception as error:  # such as tensors that share their memory
            self._pickled.add(kind)
            folder = args[0] if args else kwargs.get("save_directory")
            if isinstance(folder, str | os.PathLike):
                remove_safetensors(folder)
            sync.remedied(Action.SAFETENSORS, Outcome.FAILED, began, f"saved as asked for: {error}")
            return call(*args, **kwargs)
        sync.remedied(Action.SAFETENSORS, Outcome.DONE, began)
        return saved

    def ended(self, sync: Sync, record: SyncRecord, raised: BaseException | None) -> bool:
        """A sync is over; true when its exception is to be kept from the trainer."""
        if self._folder is not None:
            self._folder.abandon()
        in_step, self._passed = sync.passed >= self._passed, max(sync.passed, self._passed)
        if self._stale is None:
            return False
        key = f"sglang_telemetry/goes_on/{record.identity.run_id}/{record.sequence}"
        failed = record.result is Result.FAILURE and isinstance(raised, Exception)
        if not record.coordinator:
            return failed and in_step and sync.passed > 0 and collectives.told(key)
        began = sync.offset_ns()
        now = self._recorder.clock.monotonic_ns() / 1e9
        decision = self._stale.decide(record, now, in_step=in_step)
        if decision is None or not failed:
            return False
        collectives.tell(key, decision.goes_on)
        outcome = Outcome.DONE if decision.goes_on else Outcome.REFUSED
        sync.remedied(Action.CONTINUE_STALE, outcome, began, decision.why)
        return decision.goes_on

    def close(self) -> None:
        """Nothing is done any more."""
        if self._folder is not None:
            self._folder.close()

    def _verdict(self, model: Any, arguments: Mapping[str, Any]) -> tuple[Verdict, int | None]:
        named = path_in(dict(arguments))
        folder = named if named is not None and os.path.isdir(named) else getattr(self._engine, FOLDER, None)
        if folder is None or not os.path.isdir(folder):
            return Verdict(unchecked=f"{named or 'the folder'} is not there on this host"), None
        path = os.fspath(folder)
        there = checkpoint.look(path, deep=False)
        return verdict_for(model, path, headers_of(path)), there.bytes if there is not None else None
