"""The remedies of one engine: can they work with it, and where they take hold of a sync.

Only the rank that sends the update does anything; the others learn the outcome from the engine's own broadcast, and,
for ``on_failure``, from the process group's key-value store.
"""

import contextlib
import functools
import itertools
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
from sglang_telemetry.instrument.serving import Serving
from sglang_telemetry.instrument.sync import Recorder, Sync
from sglang_telemetry.names import Action, Outcome, Result, Transport
from sglang_telemetry.remedies.client import Client
from sglang_telemetry.remedies.course import Course, Means
from sglang_telemetry.remedies.host_lock import HostLock
from sglang_telemetry.remedies.leftovers import Tidied
from sglang_telemetry.remedies.options import Remedies
from sglang_telemetry.remedies.safetensors import Attempt, as_safetensors
from sglang_telemetry.remedies.stale import Stale
from sglang_telemetry.remedies.timeout import AutoTimeout
from sglang_telemetry.text import said_by

_NUMBERS = itertools.count(1)


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
        check(options, engine, asynchronous=asynchronous)
        self._folder: EngineFolder | None = None
        self._recovered: Tidied | None = None
        if recorder.identity.is_coordinator():  # the others send nothing
            check_routes(options, engine)
            if options.publish_atomically:
                self._folder = EngineFolder(engine)
                self._recovered = self._folder.recover()
        self._timeout = AutoTimeout(options)
        self._own_pauses = OwnPauses()
        self._lock = functools.partial(HostLock, locks)
        self._stale = Stale(options) if options.on_failure == "continue_stale" else None
        self._serving = Serving()
        self._number = next(_NUMBERS)  # all ranks instrument their engines in one order
        self._pickled: set[type] = set()
        self._passed = 0

    def begin(self, sync: Sync) -> Restore | None:
        """A sync has begun on the rank that sends: where the engine saves to."""
        self._serving.begin()
        if self._folder is None or not sync.coordinator:
            return None
        began, recovered = sync.offset_ns(), self._recovered
        if recovered is not None:  # a remedy is told as part of a sync
            self._recovered = None
            sync.remedied(Action.CLEAN_UP, Outcome.FAILED if recovered.failed else Outcome.DONE, began, str(recovered))
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
        disk, folder = transport_of(url) is Transport.DISK, self._folder
        means = Means(
            options=self._options,
            timeout=self._timeout,
            lock=self._lock,
            # What is sent in the middle of a save is not what is being saved.
            publishing=folder if disk and folder is not None and folder.begun and not sync.inside else None,
            verdict=functools.partial(self._verdict, model),
            failed=self._on_error,
            collective_seconds=collectives.time_out_seconds(),
        )

        def run(send: Callable[[dict[str, Any]], Any], arguments: dict[str, Any]) -> Any:
            get = getattr(sender.client, "get", None)
            client = Client(url, arguments, post=sender.post, get=get, kind=sender.client)
            self._serving.sends(server, client)
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
        began, attempt = sync.offset_ns(), Attempt(args[0] if args else kwargs.get("save_directory"))
        try:
            saved = call(*changed[0], **changed[1])
        except OSError:  # a disk that is full is full for the other format too
            raise
        except Exception as error:  # such as tensors that share their memory
            self._pickled.add(kind)
            attempt.undo()
            sync.remedied(Action.SAFETENSORS, Outcome.FAILED, began, f"saved as asked for: {error}")
            return call(*args, **kwargs)
        sync.remedied(Action.SAFETENSORS, Outcome.DONE, began)
        return saved

    def settle(self, sync: Sync, succeeded: bool) -> None:
        """The engine's call is over: what it saved, and no update has named, is put in its place or goes."""
        if self._folder is None:
            return
        began = sync.offset_ns()
        try:
            wrong = self._folder.ended(succeeded=succeeded)
        except OSError as error:
            wrong = f"what was saved could not be put in its place: {said_by(error)}"
        if wrong is not None:
            sync.remedied(Action.PUBLISH, Outcome.FAILED, began, wrong)

    def ended(self, sync: Sync, record: SyncRecord, raised: BaseException | None) -> bool:
        """A sync is over; true when its exception is to be kept from the trainer."""
        in_step, self._passed = sync.passed >= self._passed, max(sync.passed, self._passed)
        if self._stale is None:
            return False
        of = record.identity
        key = f"sglang_telemetry/goes_on/{of.run_id}/{of.run}/{self._number}/{record.sequence}"
        failed = record.result is Result.FAILURE and isinstance(raised, Exception)
        if not record.coordinator:
            return failed and in_step and sync.passed > 0 and collectives.agreed(key)
        if record.result is Result.SUCCESS:
            self._serving.took()
        began, now = sync.offset_ns(), self._recorder.clock.monotonic_ns() / 1e9
        changed = functools.partial(self._serving.changed, sync.sent)
        decision = self._stale.decide(record, now, in_step=in_step, changed=changed)
        if decision is None or not failed:
            return False
        goes_on = collectives.agree(key, decision.goes_on)
        why = decision.why if goes_on is decision.goes_on else "the other ranks did not wait for this decision"
        sync.remedied(Action.CONTINUE_STALE, Outcome.DONE if goes_on else Outcome.REFUSED, began, why)
        return goes_on

    def within(self, sync: Sync, raised: BaseException | None) -> None:
        """A call that is part of a longer sync is over: whether that fails is for its caller to say."""
        if self._stale is not None and sync.coordinator and isinstance(raised, Exception):
            why = "inside telemetry.sync() a run cannot go on: leave that out, or catch the exception yourself"
            sync.remedied(Action.CONTINUE_STALE, Outcome.REFUSED, sync.offset_ns(), why)

    def close(self) -> None:
        """Nothing is done any more."""
        if self._folder is not None:
            self._folder.close()

    def _verdict(self, model: Any, arguments: Mapping[str, Any]) -> tuple[Verdict, int | None]:
        named = path_in(dict(arguments))
        path = self._path_here(named)
        with contextlib.nullcontext(path) if self._folder is None or path is None else self._folder.at(path) as path:
            if path is None or not os.path.isdir(path):
                return Verdict(unchecked=f"{named or 'the folder'} is not there on this host"), None
            there = checkpoint.look(path, deep=False)
            return verdict_for(model, path, headers_of(path)), there.bytes if there is not None else None

    def _path_here(self, named: str | None) -> str | None:
        """The folder that an update names, as it is called on this host; None when that is not known."""
        saves_to = getattr(self._engine, FOLDER, None)
        if (named is not None and os.path.isdir(named)) or not isinstance(saves_to, str | os.PathLike):
            return named
        # The server's host may have it mounted elsewhere: what comes after its name is the same there.
        own, parts = os.path.abspath(saves_to), (named or "").rstrip("/").split("/")
        name = os.path.basename(own)
        below = parts[len(parts) - parts[::-1].index(name) :] if name in parts else []
        return os.path.join(own, *below)
