"""The seams of one sync: where it goes from phase to phase, and what is seen there of errors and prints."""

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

from sglang_telemetry.identity import process_group
from sglang_telemetry.instrument.reading import attribute, layers_of
from sglang_telemetry.instrument.running import RUNNING
from sglang_telemetry.instrument.seams import Around, Restore, shadow, watch
from sglang_telemetry.instrument.sync import Sync
from sglang_telemetry.names import Phase

_COLLECTIVES = {
    "broadcast": Phase.BROADCAST,
    "broadcast_object_list": Phase.BROADCAST,
    "barrier": Phase.BARRIER,
    "monitored_barrier": Phase.BARRIER,
}


class Save(Protocol):
    """Saves a model for a sync in the place of the model's own call."""

    def __call__(self, sync: Sync, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What that call returns; it raises what that raises."""


class Marks:
    """Puts the seams of one sync in.

    Args:
        sync: Told of what is seen.
        engine: Its tokenizer is saved with the model.
        module: Namespace of the module of its ``update_policy``.
        guarded: Calls a function of ours, and keeps its errors from the trainer.
        save: Saves models; None where they save themselves.
    """

    def __init__(
        self,
        sync: Sync,
        engine: Any,
        module: dict[str, Any],
        guarded: Callable[..., Any],
        *,
        save: Save | None = None,
    ) -> None:
        self._sync, self._engine, self._module, self._guarded, self._save = sync, engine, module, guarded, save

    def put(self, model: Any, restores: list[Restore]) -> None:
        """Put the seams in.

        Args:
            model: What is pushed.
            restores: Gets what takes each of them out, also when the next one fails.
        """
        sync = self._sync
        for layer in layers_of(model):
            add(restores, shadow(layer, "state_dict", self._seam(Phase.STATE_DICT, sync.mark_state_dict)))
            if self._save is not None:
                add(restores, shadow(layer, "save_pretrained", functools.partial(self._save, sync)))
            add(restores, shadow(layer, "save_pretrained", self._seam(Phase.SAVE, sync.mark_save)))
        tokenizer = attribute(self._engine, "tokenizer")
        if tokenizer is not None:
            add(restores, shadow(tokenizer, "save_pretrained", self._seam(Phase.SAVE, sync.mark_save)))
        self._put_collectives(restores)

        def on_print(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            file, separator = kwargs.get("file"), kwargs.get("sep")
            if RUNNING.get() is not sync or not (file is None or file is sys.stdout):
                return call(*args, **kwargs)
            text = (" " if separator is None else separator).join(map(str, args))
            if self._guarded(sync.saw_print, text, sys.exception()):
                return None
            return call(*args, **kwargs)

        restores.append(watch(self._module, "print", self._module.get("print", print), on_print))

    def _put_collectives(self, restores: list[Restore]) -> None:
        group = process_group()
        distributed: dict[str, Any] = {} if group is None else vars(group)
        for name, phase in _COLLECTIVES.items():
            if name not in distributed:
                continue
            original = distributed[name]
            seam = self._collective(phase)
            restores.append(watch(distributed, name, original, seam))
            if name in self._module and self._module[name] is original:  # from torch.distributed import broadcast
                restores.append(watch(self._module, name, original, seam))

    def _seam(self, phase: Phase, mark: Callable[[], None]) -> Around:
        sync = self._sync

        def around(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._guarded(mark)
            sync.inside += 1
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                self._guarded(sync.saw_error, error, phase)
                raise
            finally:
                sync.inside -= 1

        return around

    def _collective(self, phase: Phase) -> Around:
        sync = self._sync

        def around(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # A collective inside a save (sharded models gather there) is part of the save.
            if RUNNING.get() is not sync or sync.inside:
                return call(*args, **kwargs)
            self._guarded(sync.mark, phase)
            try:
                returned = call(*args, **kwargs)
            except BaseException as error:
                self._guarded(sync.saw_error, error, phase)
                raise
            sync.passed += 1
            self._guarded(sync.mark, Phase.OTHER)
            return returned

        return around


def add(restores: list[Restore], restore: Restore | None) -> None:
    """Keep what takes a seam out, where one was put in."""
    if restore is not None:
        restores.append(restore)
