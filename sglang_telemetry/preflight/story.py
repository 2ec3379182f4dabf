"""The whole check, in the order of a sync: the folder that is written, then each server that reads it."""

import os
import time
from collections.abc import Callable, Mapping, Sequence

from sglang_telemetry.checkpoint.tensors import TensorSpec
from sglang_telemetry.preflight.arguments import AnyPath, check_arguments
from sglang_telemetry.preflight.checkpoint import checkpoint, look_at
from sglang_telemetry.preflight.filesystem import filesystem
from sglang_telemetry.preflight.findings import Check, Finding, Report, at, fail
from sglang_telemetry.preflight.folder import examine_folder, folder, room
from sglang_telemetry.preflight.job import Job, T_co, outcome
from sglang_telemetry.preflight.model import TrainerModel, trainer_model
from sglang_telemetry.preflight.one_server import Asked, OneServer, ask, begin, compare_model, judge, prove
from sglang_telemetry.preflight.timeout import timeout
from sglang_telemetry.server_truth.keys import NO_KEYS, Keys
from sglang_telemetry.text import clean

SECONDS = 15.0
"""When nothing new is waited for; a dry run comes after that, and each thing that hangs may take a second more."""
_MOUNT = "look at its mount on this host, and mount it again if that hangs"


def run(
    servers: Sequence[str],
    *,
    shared_path: AnyPath | None,
    model: Mapping[str, TensorSpec] | None = None,
    model_dir: AnyPath | None = None,
    checkpoint_dir: AnyPath | None = None,
    timeout_seconds: float | None = None,
    keys: Keys = NO_KEYS,
    environ: Mapping[str, str] | None = None,
    dry_run: bool = False,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Find out what can be known before the first sync; what goes wrong on the way is a finding.

    Args:
        servers: Their addresses, such as ``http://10.0.0.7:30000``; none to look at ``checkpoint_dir`` alone.
        shared_path: The folder that the trainer writes checkpoints to, absolute; None for an engine without one.
        model: The tensors of the model that is trained, None when they are not known.
        model_dir: Its folder, with a ``config.json``.
        checkpoint_dir: A checkpoint to look at instead of the one in the shared folder.
        timeout_seconds: What the engine gives an update.
        keys: What the servers want to be shown.
        environ: Of the trainer; proxy variables and certificates are read from it. Default ``os.environ``.
        dry_run: Also send updates that change nothing.
        seconds: How long to wait for all of it but a dry run; after that the folder, the checkpoint and each server's
            model get a second more each, if they hang.
        clock: Monotonic seconds.

    Raises:
        ValueError: No server is named, a path makes no sense, or the time-out is none.
    """
    check_arguments(servers, shared_path, model_dir, checkpoint_dir, timeout_seconds)
    environ = os.environ if environ is None else environ
    deadline = clock() + seconds

    def left() -> float:
        return deadline - clock()

    # All of it begins at once, each in a thread of its own.
    looks = _Looks(shared_path, model, model_dir, checkpoint_dir)
    of_servers = [begin(text) for text in dict.fromkeys(servers)]
    asked = [_asking(one, keys, environ, seconds) for one in of_servers]

    trained, no_model = outcome(looks.model, min(left(), 5.0))
    if trained is None:
        trained = TrainerModel(name=looks.model_at or "the trainer's model", unread=no_model)
    for one, job in zip(of_servers, asked, strict=True):
        if job is not None:
            judge(one, job, environ, keys, left())
            compare_model(one, trained, max(1.0, left()))
    state, no_state = _of(looks.folder, left())
    present, not_present = _of(looks.checkpoint, left())
    for one in of_servers:
        prove(one, state, keys, wanted=dry_run, seconds=timeout_seconds)

    inside = (present.bytes or 0) if present is not None and present.files else 0
    whole = inside if present is not None and present.fault is None else 0
    payload = whole or trained.payload_bytes
    findings: list[Finding | None] = []
    if state is not None:
        findings += [
            folder(state),
            room(state, payload=payload, present=inside if checkpoint_dir is None else 0, unread=trained.unread),
            filesystem(
                state.facts,
                same_host=all(one.same_host for one in of_servers),
                proved=all(one.proved for one in of_servers),
            ),
        ]
    elif no_state:
        findings.append(fail(Check.FOLDER, no_state, _MOUNT))
    findings.append(
        timeout(
            timeout_seconds,
            payload=payload,
            bytes_per_second=state.bytes_per_second if state is not None else None,
            loaded_in=max((one.loaded_in for one in of_servers if one.loaded_in is not None), default=None),
            unread=trained.unread,
        )
    )
    there: Finding | None = None
    if present is not None:
        there = checkpoint(present, asked=checkpoint_dir is not None)
    elif not_present and not (no_state and looks.checkpoint_at == looks.shared):
        there = fail(Check.CHECKPOINT, not_present, _MOUNT)
    return Report(
        (
            *at(_shown(looks.shared or "the engine"), findings),
            *at(_shown(looks.checkpoint_at or ""), [there]),
            *(finding for one in of_servers for finding in one.findings),
        )
    )


def _shown(path: str) -> str:
    return clean(path, limit=1024)


class _Looks:
    """What is looked at on this host; any of it may hang with its file system."""

    def __init__(
        self,
        shared_path: AnyPath | None,
        model: Mapping[str, TensorSpec] | None,
        model_dir: AnyPath | None,
        checkpoint_dir: AnyPath | None,
    ) -> None:
        shared = None if shared_path is None else os.path.normpath(os.fspath(shared_path))
        checkpoint_at = os.fspath(checkpoint_dir) if checkpoint_dir is not None else shared
        model_at = None if model_dir is None else os.fspath(model_dir)
        self.shared, self.checkpoint_at, self.model_at = shared, checkpoint_at, model_at
        self.folder = None if shared is None else Job(lambda: examine_folder(shared), "preflight-folder")
        self.checkpoint = (
            None if checkpoint_at is None else Job(lambda: look_at(checkpoint_at, model), "preflight-checkpoint")
        )
        self.model = Job(lambda: trainer_model(model_at, model), "preflight-model")


def _of(job: Job[T_co] | None, left: float) -> tuple[T_co | None, str]:
    """Of one that may not have been begun; it is given a second at least."""
    return (None, "") if job is None else outcome(job, max(1.0, left))


def _asking(one: OneServer, keys: Keys, environ: Mapping[str, str], seconds: float) -> Job[Asked] | None:
    url = one.url
    if url is None:
        return None
    # What follows on the examination gets the rest.
    return Job(lambda: ask(url, keys, environ, 0.5 * seconds), f"preflight {one.place}")
