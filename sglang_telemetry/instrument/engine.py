"""One call of an engine's ``update_policy``: open a sync, put the seams in, call, put them out, close, re-raise."""

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_telemetry.events import SyncRecord
from sglang_telemetry.instrument.http import Around, Request, Sender, is_update
from sglang_telemetry.instrument.inspection import Inspection, Inspector
from sglang_telemetry.instrument.lent import Lent
from sglang_telemetry.instrument.marks import Marks, add
from sglang_telemetry.instrument.outside import Outside
from sglang_telemetry.instrument.reading import Place, attribute, folder_of, layers_of, place_of, target_of
from sglang_telemetry.instrument.running import RUNNING, enter
from sglang_telemetry.instrument.seams import Restore, Shadow, shadow
from sglang_telemetry.instrument.sync import Recorder, Sync
from sglang_telemetry.remedies.options import Remedies

if TYPE_CHECKING:
    from sglang_telemetry.instrument.remedies import EngineRemedies

METHOD = "update_policy"
REQUESTING = ("rollout", "generate", "flush_cache", "pause_generation", "continue_generation")
"""Methods of an engine that send requests outside of a sync."""


def check(engine: object) -> None:
    """Can this be instrumented?

    Raises:
        TypeError: It is a class, has no ``update_policy``, or takes no attributes.
        RuntimeError: It is instrumented already.
    """
    if isinstance(engine, type):
        raise TypeError(f"instrument({engine.__name__}): this is a class; instrument the engine that is made from it")
    method = getattr(engine, METHOD, None)
    if not callable(method):
        raise TypeError(
            f"instrument({type(engine).__name__}): it has no method {METHOD}(model); "
            "pass the rollout engine, or use `with telemetry.sync()` around your own code"
        )
    if not isinstance(getattr(engine, "__dict__", None), dict):
        raise TypeError(f"instrument({type(engine).__name__}): it has __slots__ and takes no attribute {METHOD}")
    for _ in range(64):  # an object that answers every attribute has a __wrapped__ without end
        if isinstance(method, Shadow):
            raise RuntimeError(
                f"this {type(engine).__name__} is instrumented already: use the Telemetry you got, or uninstrument() it"
            )
        method = getattr(method, "__wrapped__", None)


class EngineInstrument:
    """Wraps ``engine.update_policy``, and those of its methods that send other requests.

    Args:
        engine: Passed :func:`check`.
        recorder: Makes the syncs.
        on_error: Told of every error of ours; never raises.
        inspect_checkpoints: What is sent is looked at beside the sync.
        remedies: What is done against failed syncs.
        locks: Folder of the locks that trainers of this host share.

    Raises:
        ValueError: A remedy cannot work with this engine.
    """

    def __init__(
        self,
        engine: Any,
        recorder: Recorder,
        on_error: Callable[[BaseException], None],
        *,
        inspect_checkpoints: bool = True,
        remedies: Remedies | None = None,
        locks: Path | None = None,
    ) -> None:
        self._engine, self._recorder, self._on_error = engine, recorder, on_error
        original = getattr(engine, METHOD)
        asynchronous = inspect.iscoroutinefunction(original)
        self._remedies: EngineRemedies | None = None
        if remedies is not None and remedies.names and locks is not None:
            self._remedies = _remedies_of(engine, remedies, recorder, on_error, locks, asynchronous=asynchronous)
        self._busy = threading.Lock()
        self._active = True
        self._http = Lent(engine, self)
        self._outside = Outside(recorder)
        self._inspector = Inspector(recorder.emit, recorder.clock, on_error) if inspect_checkpoints else None
        self._sync: Sync | None = None
        self._model: Any = None
        self._module: dict[str, Any] = getattr(inspect.unwrap(original), "__globals__", {})
        around = self._around_async if asynchronous else self._around
        self._restores = [shadow(engine, METHOD, around)]
        for name in REQUESTING:
            method = attribute(engine, name)
            if inspect.iscoroutinefunction(method):
                self._restores.append(shadow(engine, name, self._requesting_async))
            elif inspect.isgeneratorfunction(method):
                self._restores.append(shadow(engine, name, self._requesting_streamed))
            elif inspect.ismethod(method):
                self._restores.append(shadow(engine, name, self._requesting))

    def place(self) -> Place:
        """What the engine's attributes say now."""
        return place_of(self._engine)

    def remove(self) -> None:
        """Take the wrappers off; if somebody wrapped over one, it stays as a plain pass-through."""
        self._active = False
        self.stop_inspecting()
        if self._remedies is not None:
            self._guarded(self._remedies.close)
        for restore in self._restores:
            if restore is not None:
                restore()

    def stop_inspecting(self) -> None:
        """What is looked at now will not be told any more."""
        if self._inspector is not None:
            self._guarded(self._inspector.close)

    def around(self, url: str, sender: Sender) -> Around | None:
        """What remedies do around a request: an update of the sync that has the engine, or one that they look at."""
        if self._remedies is None:
            return None
        sync = self._sync
        if sync is None or sync.over or not is_update(url) or not sync.coordinator:
            sync = None
        return self._remedies.around(sync, url, sender, self._model)

    def generated(self, body: bytes | None) -> None:
        """The engine got generated text."""
        if not self._active:
            return
        if self._inspector is not None:
            self._inspector.generated()
        if body is not None:
            self._recorder.rollouts.saw(body, self._recorder.sequence)

    def request_started(self, method: str, url: str, arguments: dict[str, Any]) -> Request | None:
        """The engine sends something: as part of a sync, or outside of one."""
        sync = RUNNING.get()
        if sync is None or sync.over or sync.recorder is not self._recorder:
            # An engine may send from a thread pool of its own, which does not inherit the context.
            sync = self._sync if is_update(url) else None
        if sync is not None:
            return sync.request_started(method, url, arguments)
        return self._outside.request_started()

    def _requesting(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return original(*args, **kwargs)
        give_back = self._guarded(self._http.lend)
        try:
            return original(*args, **kwargs)
        finally:
            if give_back is not None:
                self._guarded(give_back)

    def _requesting_streamed(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        give_back = self._guarded(self._http.lend) if self._active else None
        try:
            return (yield from original(*args, **kwargs))
        finally:
            if give_back is not None:
                self._guarded(give_back)

    async def _requesting_async(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not self._active:
            return await original(*args, **kwargs)
        give_back = self._guarded(self._http.lend)
        try:
            return await original(*args, **kwargs)
        finally:
            if give_back is not None:
                self._guarded(give_back)

    def _around(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return original(*args, **kwargs)
        with self._observed(args, kwargs) as observed:
            observed.returned = original(*args, **kwargs)
        return observed.returned

    async def _around_async(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return await original(*args, **kwargs)
        with self._observed(args, kwargs) as observed:
            observed.returned = await original(*args, **kwargs)
        return observed.returned

    def _observed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_Observed":
        return _Observed(self, kwargs.get("model", args[0] if args else None))

    def begin(self, model: Any) -> tuple[Sync | None, list[Restore], bool]:
        """Open a sync, or join the one that ``telemetry.sync()`` opened, and put the seams in.

        Returns:
            The sync to close at the end (None when it is somebody else's to close), what takes the seams out, and
            whether the engine is ours alone until then.
        """
        restores: list[Restore] = []
        outer = RUNNING.get()
        if outer is not None and (outer.recorder is not self._recorder or outer.over):
            outer = None
        alone = self._busy.acquire(blocking=False)
        try:
            if outer is not None and not alone:  # a nested call: it is part of the one that runs
                return None, restores, alone
            sync = outer or self._recorder.begin(target_of(self._engine), folder=folder_of(self._engine))
            # Of two calls at once on one engine, the second is timed as a whole: seams cannot tell them apart.
            restores.append(self._http.lend())
            if alone:
                self._sync = sync
                if self._inspector is not None and sync.inspection is None:
                    sync.inspection = self._guarded(self._inspection, self._inspector, model)
                if self._remedies is not None:
                    layers = layers_of(model)
                    self._model = layers[-1] if layers else None
                    add(restores, self._guarded(self._remedies.begin, sync))
                self._guarded(self._marks(sync).put, model, restores)  # without its seams, a sync is still a sync
            return (None if outer is not None else sync), restores, alone
        except Exception as error:
            self.failed(error)
            return None, restores, alone
        except BaseException:  # Ctrl-C while the seams go in
            for restore in reversed(restores):
                restore()
            self.finish(alone)
            raise

    def _marks(self, sync: Sync) -> Marks:
        save = self._remedies.save if self._remedies is not None else None
        return Marks(sync, self._engine, self._module, self._guarded, save=save)

    def _inspection(self, inspector: Inspector, model: Any) -> Inspection:
        layers = layers_of(model)
        return Inspection(inspector, layers[-1] if layers else None)

    def settle(self, own: Sync | None, alone: bool, returned: object, raised: BaseException | None) -> None:
        """The call of the engine is over, the sync not yet.

        Args:
            own: The sync, where the call made it.
            alone: The seams were this call's.
            returned: By the call.
            raised: What left it.
        """
        sync = self._sync if alone else None
        if self._remedies is None or sync is None:
            return
        self._guarded(self._remedies.settle, sync, raised is None and returned is not False)
        if own is None:
            self._guarded(self._remedies.within, sync, raised)

    def remedied(self, sync: Sync, record: SyncRecord, raised: BaseException | None) -> bool:
        """Is the exception of a sync to be kept from the trainer?"""
        return self._remedies is not None and self._remedies.ended(sync, record, raised)

    def finish(self, alone: bool) -> None:
        """The engine is free for another call."""
        if alone:
            self._sync = self._model = None
            self._busy.release()

    def failed(self, error: BaseException) -> None:
        """Something of ours went wrong."""
        self._on_error(error)

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            self.failed(error)
            return None


class _Observed:
    """The wrapping of one call as a context manager that lets every exception through untouched.

    But for one that a remedy keeps from the trainer, who gets False then.
    """

    __slots__ = ("_alone", "_instrument", "_leave", "_model", "_restores", "_sync", "returned")

    def __init__(self, instrument: EngineInstrument, model: Any) -> None:
        self._instrument, self._model = instrument, model
        self.returned: Any = None

    def __enter__(self) -> "_Observed":
        self._sync, self._restores, self._alone = self._instrument.begin(self._model)
        self._model = None
        self._leave = enter(self._sync) if self._sync is not None else None
        return self

    def __exit__(self, kind: object, raised: BaseException | None, traceback: object) -> bool:
        goes_on = False
        try:
            for restore in reversed(self._restores):
                restore()
            self._instrument.settle(self._sync, self._alone, self.returned, raised)
            if self._leave is not None:
                self._leave()
            if self._sync is not None:
                record = self._sync.end(returned=self.returned, raised=raised)
                goes_on = self._instrument.remedied(self._sync, record, raised)
                if goes_on:
                    self.returned = False
        except Exception as error:
            self._instrument.failed(error)
        finally:
            self._instrument.finish(self._alone)
        return goes_on


def _remedies_of(
    engine: Any,
    remedies: Remedies,
    recorder: Recorder,
    on_error: Callable[[BaseException], None],
    locks: Path,
    *,
    asynchronous: bool,
) -> "EngineRemedies":
    """Imported here, for those alone who want any."""
    from sglang_telemetry.instrument.remedies import EngineRemedies

    return EngineRemedies(remedies, engine, recorder, on_error, locks, asynchronous=asynchronous)
