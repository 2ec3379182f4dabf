"""Is the trainer's model the one that the server runs? A tensor of another shape kills the server (SGLang 0.5.23)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_telemetry.checkpoint.architecture import Architecture, architecture_of, differences, read_architecture
from sglang_telemetry.checkpoint.errors import CheckpointError
from sglang_telemetry.checkpoint.headers import read_headers
from sglang_telemetry.checkpoint.tensors import BITS, TensorSpec
from sglang_telemetry.checkpoint.validate import compare
from sglang_telemetry.preflight.findings import THE_MODEL, Check, Finding, Level, fail, ok, warn
from sglang_telemetry.server_truth.client import ModelInfo
from sglang_telemetry.server_truth.facts import ServerFacts

_HALF = 2
"""Bytes of a number in what a trainer sends."""
_READABLE = "give the folder of a whole checkpoint of it, which can be read here"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerModel:
    """What is known of the model that is trained; None is unknown.

    Args:
        name: How it is called in a finding.
        architecture: Of its ``config.json``.
        tensors: Of the model itself, or of its files.
        unread: Why some of what its folder holds could not be read; empty when all could.
    """

    name: str = ""
    architecture: Architecture | None = None
    tensors: Mapping[str, TensorSpec] | None = None
    unread: str = ""

    @property
    def payload_bytes(self) -> int | None:
        """How much one sync writes, in half precision."""
        if self.tensors is None:
            return None
        return sum(
            one.values * (_HALF if one.kind == "float" else max(1, BITS.get(one.dtype, 16) // 8))
            for one in self.tensors.values()
        )


def trainer_model(folder: str | None, tensors: Mapping[str, TensorSpec] | None) -> TrainerModel:
    """Read what there is, and keep why the rest could not be read.

    Args:
        folder: With its ``config.json``; None without one.
        tensors: The model's own, None when they are not known.
    """
    if folder is None:
        return TrainerModel(name="the trainer's model", tensors=tensors)
    unread: list[str] = []
    architecture: Architecture | None = None
    try:
        architecture = read_architecture(folder)
    except CheckpointError as error:
        unread.append(str(error))
    if tensors is None:
        try:
            tensors = read_headers(folder).tensors
        except CheckpointError as error:
            unread.append(str(error))
    return TrainerModel(
        name=folder, architecture=architecture, tensors=tensors, unread="; ".join(dict.fromkeys(unread))
    )


def same_model(model: TrainerModel, facts: ServerFacts) -> Finding | None:
    """Does the model fit to what the server runs? None when the server tells nothing."""
    if facts.info is None:
        return None
    if model.architecture is None and model.tensors is None:
        if model.unread:
            return warn(Check.MODEL, f"not compared: {model.name}: {model.unread}", _READABLE)
        return ok(Check.MODEL, f"not compared: {THE_MODEL}")
    found = _compared(model, facts, facts.info)
    if model.unread and found.level is Level.OK:
        return warn(Check.MODEL, f"{found.reason}; not all of {model.name} can be read: {model.unread}", _READABLE)
    return found


def _compared(model: TrainerModel, facts: ServerFacts, info: ModelInfo) -> Finding:
    path = (facts.start.model_path if facts.start is not None else None) or info.model_path
    readable = architecture_of(path) if os.path.isabs(path) else None
    there = readable or Architecture(model_type=info.model_type, architectures=info.architectures or None)
    every = differences(model.architecture, there) if model.architecture is not None else ()
    unlike = tuple(one for one in every if not one.startswith("architectures "))  # a class can have another name
    if unlike:
        whose = f"{path}, which the server was started with" if readable is not None else "the server's model"
        return fail(
            Check.MODEL,
            f"{model.name} is not {whose}: {'; '.join(unlike)}. An update of another shape kills the server",
            f"start SGLang with --model-path {model.name}",
        )
    by_tensors = _by_tensors(model, path) if model.tensors is not None and os.path.isabs(path) else None
    if by_tensors is not None:
        return by_tensors
    if every:
        advice = "compare the names of their tensors: SGLang ignores what it does not know, and says success"
        return warn(Check.MODEL, f"{model.name} and the server's: {'; '.join(every)}; the sizes agree", advice)
    if readable is not None and model.architecture is not None:
        return ok(Check.MODEL, f"the same sizes as {path}, which the server was started with")
    if model.architecture is None or (there.model_type is None and there.architectures is None):
        return ok(Check.MODEL, f"not compared: {path}, which the server was started with, cannot be read here")
    names = ", ".join(filter(None, (there.model_type, *(there.architectures or ()))))
    return ok(Check.MODEL, f"the same kind ({names}); sizes were not compared, since {path} cannot be read here")


def _by_tensors(model: TrainerModel, path: str) -> Finding | None:
    """The trainer's tensors against those that the server was started with; None where these cannot be read."""
    try:
        there = read_headers(path).tensors
    except CheckpointError:
        return None
    found = compare(model.tensors or {}, there)
    if found.shapes:
        tensor, (mine, theirs) = next(iter(found.shapes.items()))
        more = f" and {len(found.shapes) - 1} more" if len(found.shapes) > 1 else ""
        return fail(
            Check.MODEL,
            f"{model.name} is not {path}, which the server was started with: {tensor} is {list(mine.shape)} here, "
            f"{list(theirs.shape)} there{more}. An update of another shape kills the server",
            "start SGLang with the model that is trained",
        )
    known = len(there) - len(found.missing)
    if not known:
        return warn(
            Check.MODEL,
            f"no tensor of {model.name} has the name of one of {path}, which the server was started with",
            "compare the names of their tensors: SGLang ignores what it does not know, and says success",
        )
    return ok(Check.MODEL, f"{known} tensors have the names and shapes of {path}, which the server was started with")
