"""The folder that an engine saves to, and another one that it is led to for the time of a sync."""

import errno
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from sglang_telemetry.instrument.http import path_in
from sglang_telemetry.instrument.seams import Restore
from sglang_telemetry.remedies.claims import is_temporary
from sglang_telemetry.remedies.forked import forget_in_child
from sglang_telemetry.remedies.leftovers import Tidied
from sglang_telemetry.remedies.publish import Publisher, has_files, has_weights

FOLDER = "shared_ckpt_path"
_CLOSE_SECONDS = 5.0


class EngineFolder:
    """The checkpoint folder of an engine, which is led to another one while it saves.

    Its threads may send to several servers at once.

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
        self._engine, self._path = engine, os.path.abspath(folder)
        self._publisher = Publisher(self._path)
        self._lock = threading.Lock()
        self._staging: str | None = None
        self._published = self._unwanted = self._named = self._off = False
        forget_in_child(self)

    @property
    def begun(self) -> bool:
        """The engine saves into a staging folder now."""
        return self._staging is not None

    def recover(self) -> Tidied | None:
        """Remove what an earlier start has left; None when there was nothing."""
        return self._publisher.recover()

    def begin(self) -> Restore | None:
        """Lead the engine to a staging folder, until what is returned is called.

        Raises:
            OSError: There can be none.
        """
        given = vars(self._engine).get(FOLDER)
        if self._off or given is None or not isinstance(given, str | os.PathLike):
            return None
        path = os.path.abspath(given)  # the process may have changed its folder
        if path != self._path:
            self._publisher.close(_CLOSE_SECONDS)
            try:
                self._path, self._publisher = path, Publisher(path)
            except ValueError as error:
                raise OSError(str(error)) from error
        self._staging = staging = self._publisher.begin()
        self._published = self._unwanted = self._named = False
        attributes = vars(self._engine)
        attributes[FOLDER] = led = staging if isinstance(given, str) else Path(staging)

        def restore() -> None:
            # The engine may have set it meanwhile, from what it found there.
            now = attributes.get(FOLDER)
            if now is led:
                attributes[FOLDER] = given
            elif isinstance(now, str | os.PathLike) and (moved := self._moved(os.fspath(now), staging)) is not None:
                attributes[FOLDER] = moved if isinstance(now, str) else Path(moved)

        return restore

    @contextmanager
    def at(self, path: str) -> Iterator[str]:
        """Where that lies which the engine has saved under a path, or would have found there; it stays there."""
        with self._lock:
            staging = self._staging
            moved = None if staging is None or has_files(staging) else self._moved(path, staging)
            yield moved or path

    def forget(self) -> None:
        """In a forked child: it is the parent who saves."""
        self._lock, self._staging = threading.Lock(), None

    def publish(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Exchange the folders; the arguments with the name that the server is to load from, and how it was done.

        Nothing is exchanged, and there are no words, where nothing was saved there: an engine may send what another
        part of the trainer has saved.

        Raises:
            OSError: It could not be done; what was there before is still there.
        """
        with self._lock:
            staging, named = self._staging, path_in(dict(arguments))
            parts = (named or "").split("/")
            if any(map(is_temporary, parts)) and (staging is None or os.path.basename(staging) not in parts):
                raise OSError(
                    errno.ESTALE,
                    "it was saved in an earlier sync, or after one; publish_atomically is for engines that save and "
                    "send while update_policy runs: leave it off",
                    named,
                )
            if staging is None:
                return dict(arguments), None
            rewritten = self._renamed(arguments, staging)
            if rewritten is None and not _is_elsewhere(named, staging):
                return dict(arguments), None  # it cannot be led to what is published
            self._named = True
            sent = dict(arguments) if rewritten is None else rewritten
            if not has_files(staging):
                return sent, None
            if self._publisher.is_published:
                return sent, "is there already"
            words = self._publisher.publish()
            self._published = True
            return sent, words

    def confirmed(self) -> None:
        """The server has taken it."""
        with self._lock:
            if self._published:
                self._publisher.confirmed()

    def unwanted(self) -> None:
        """What was saved is not to be published, not even at the end."""
        self._unwanted = True

    def ended(self, *, succeeded: bool) -> str | None:
        """The sync is over: what was saved and not published is put in its place if it succeeded, and goes if not.

        Returns:
            What is wrong with the way in which the engine sends, None when all is well.

        Raises:
            OSError: It could not be put in its place.
        """
        with self._lock:
            staging, self._staging = self._staging, None
            if staging is None:
                return None
            try:
                return self._settled(staging) if succeeded and not self._unwanted else None
            finally:
                self._publisher.finish()

    def _settled(self, staging: str) -> str | None:
        if not os.path.isdir(staging):
            if self._published:
                self._publisher.withdraw()
            return None
        if not has_files(staging) or self._publisher.is_published:
            return None
        if not has_weights(staging):
            self._publisher.merge()
            return None
        self._publisher.publish()
        self._publisher.confirmed()
        if self._named:
            return None
        self._off = True
        return (
            "the update did not go through engine.http with its model_path in json or data, so that it named the "
            "folder beside: what was saved was put in its place after it; publish_atomically is off from here on"
        )

    def close(self) -> None:
        """Wait for what is being removed, but not for long."""
        self._publisher.close(_CLOSE_SECONDS)

    def _renamed(self, arguments: Mapping[str, Any], staging: str) -> dict[str, Any] | None:
        """The arguments of an update with another folder; None when it is not in the staging folder."""
        body = arguments.get("json")
        if isinstance(body, Mapping):
            path = self._moved(body.get("model_path"), staging)
            return None if path is None else {**arguments, "json": {**body, "model_path": path}}
        for name in ("data", "content"):
            text = arguments.get(name)
            if isinstance(text, str | bytes):
                try:
                    fields = orjson.loads(text)
                except ValueError:
                    continue
                path = self._moved(fields.get("model_path"), staging) if isinstance(fields, dict) else None
                if path is not None:
                    return {**arguments, name: orjson.dumps({**fields, "model_path": path})}
        return None

    def _moved(self, path: Any, staging: str) -> str | None:
        """The place of what was saved under a path; None when that is not in the staging folder."""
        if not isinstance(path, str):
            return None
        final = self._path
        whole = os.path.abspath(path)
        if whole == staging or whole.startswith(f"{staging}/"):
            return final + whole[len(staging) :]
        # The server's host may have it mounted elsewhere: then the engine changes what comes before its name.
        parts = path.rstrip("/").split("/")
        name = os.path.basename(staging)
        if name not in parts:
            return None
        return "/".join(os.path.basename(final) if part == name else part for part in parts)


def _is_elsewhere(path: str | None, staging: str) -> bool:
    """Does a path lead to another folder than the staging one, as far as it is known here?"""
    return path is not None and not f"{os.path.realpath(path)}/".startswith(f"{staging}/")
