"""What a check is asked to do, refused at once where it makes no sense, in one line."""

import os
from collections.abc import Sequence

from sglang_telemetry.preflight.job import Job, outcome

AnyPath = str | os.PathLike[str]


def check_arguments(
    servers: Sequence[str],
    shared_path: AnyPath | None,
    model_dir: AnyPath | None,
    checkpoint_dir: AnyPath | None,
    timeout_seconds: float | None,
) -> None:
    """Look at the arguments of :func:`~sglang_telemetry.preflight.story.run`.

    Raises:
        ValueError: One of them makes no sense.
    """
    if isinstance(servers, str) or (not servers and checkpoint_dir is None):
        raise ValueError("name at least one server, such as http://10.0.0.7:30000")
    for name, path in (("shared path", shared_path), ("model", model_dir), ("checkpoint", checkpoint_dir)):
        text = "/" if path is None else os.fspath(path)
        if not text or "\0" in text or not text.isprintable():
            raise ValueError(f"the {name} is no path: {text!r}")
    if shared_path is not None and not os.path.isabs(shared_path):
        raise ValueError(
            f"the shared path {os.fspath(shared_path)!r} is relative, and the server has another working folder: "
            f"write {os.path.abspath(shared_path)}"
        )
    if timeout_seconds is not None and not 0 < timeout_seconds < float("inf"):
        raise ValueError(f"a time-out of {timeout_seconds} s makes no sense: give seconds above 0")
    for name, path, inside in (("model", model_dir, "config.json"), ("checkpoint", checkpoint_dir, "")):
        if path is not None and _missing(os.path.join(path, inside)):
            what = f"no {inside} in it" if inside else "no such folder"
            raise ValueError(f"{name} {os.fspath(path)}: {what}: give the folder of a checkpoint")


def _missing(path: str) -> bool:
    """Is it surely not there? A file system that hangs is told later."""
    there, _ = outcome(Job(lambda: os.path.exists(path), "preflight-argument"), 2.0)
    return there is False
