"""The folder that an engine saves to, and another one that it is led to for the time of a sync."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from sglang_telemetry.instrument.seams import Restore, swap
from sglang_telemetry.remedies.publish import Publisher, has_weights

FOLDER = "shared_ckpt_path"
_CLOSE_SECONDS = 5.0


class EngineFolder:
    """The checkpoint folder of an engine, which is led to another one while it saves.

    Args:
        engine: It keeps the folder in ``shared_ckpt_path``.

    Raises:
        ValueError: It does not, or that folder cannot be exchanged.
    """

    def __init__(self, engine: Any) -> None:
        folder = vars(engine).get(FOLDER)
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
            raise ValueError(
                f"publish_atomically: {type(engine).__name__} has no attribute {FOLDER} with the folder that it saves "
                "to; give it one that update_policy reads at each call, or leave publish_atomically off"
            )
        self._engine, self._path = engine, os.fspath(folder)
        self._publisher = Publisher(self._path)
        self._staging: str | None = None
        self._published = False

    @property
    def begun(self) -> bool:
        """The engine saves into a staging folder now."""
        return self._staging is not None

    def recover(self) -> None:
        """Remove what an earlier start has left."""
        self._publisher.recover()

    def begin(self) -> Restore | None:
        """Lead the engine to a staging folder, until what is returned is called.

        Raises:
            OSError: There can be none.
        """
        given = vars(self._engine).get(FOLDER)
        if given is None or not isinstance(given, str | os.PathLike):
            return None
        if os.fspath(given) != self._path:
            self._publisher.close(_CLOSE_SECONDS)
            try:
                self._path, self._publisher = os.fspath(given), Publisher(given)
            except ValueError as error:
                raise OSError(str(error)) from error
        self._staging, self._published = self._publisher.begin(), False
        staging = self._staging if isinstance(given, str) else Path(self._staging)
        return swap(vars(self._engine), FOLDER, staging)

    def publish(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Exchange the folders; the arguments with the name that the server is to load from, and how it was done.

        Nothing is exchanged, and there are no words, where nothing was saved there: an engine may send what another
        part of the trainer has saved.

        Raises:
            OSError: It could not be done; what was there before is still there.
        """
        if self._staging is None:
            return dict(arguments), None
        saved = has_weights(self._staging)
        rewritten = _renamed(arguments, self._staging, os.path.abspath(self._path))
        if rewritten is None:
            if saved:  # it is left there: the server may be led to it in another way
                self._staging = None
            return dict(arguments), None
        if self._published:
            return rewritten, "is there already"
        if not saved:
            return rewritten, None  # it sends what is there
        words = self._publisher.publish()
        self._published = True
        return rewritten, words

    def confirmed(self) -> None:
        """The server has taken it."""
        if self._published:
            self._publisher.confirmed()

    def abandon(self) -> None:
        """What was not published is not needed any more."""
        if self._staging is not None and not self._published:
            self._publisher.abandon()
        self._staging = None

    def close(self) -> None:
        """Wait for what is being removed, but not for long."""
        self._publisher.close(_CLOSE_SECONDS)


def _renamed(arguments: Mapping[str, Any], staging: str, final: str) -> dict[str, Any] | None:
    """The arguments of an update with another folder; None when it is not the staging folder that they name."""
    body = arguments.get("json")
    if isinstance(body, Mapping):
        path = _final(body.get("model_path"), staging, final)
        return None if path is None else {**arguments, "json": {**body, "model_path": path}}
    for name in ("data", "content"):
        text = arguments.get(name)
        if isinstance(text, str | bytes):
            try:
                fields = orjson.loads(text)
            except ValueError:
                continue
            path = _final(fields.get("model_path"), staging, final) if isinstance(fields, dict) else None
            if path is not None:
                return {**arguments, name: orjson.dumps({**fields, "model_path": path})}
    return None


def _final(path: Any, staging: str, final: str) -> str | None:
    if not isinstance(path, str):
        return None
    if os.path.abspath(path) == staging:
        return final
    # The server's host may have it mounted elsewhere: then the engine changes what comes before its name.
    before, name = os.path.split(path.rstrip("/"))
    return os.path.join(before, os.path.basename(final)) if name == os.path.basename(staging) else None
