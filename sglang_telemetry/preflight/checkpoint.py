"""What lies in the folder already: the next start of the server may read it, and a crash may have torn it."""

from collections.abc import Mapping
from dataclasses import dataclass

from sglang_telemetry.checkpoint.folder import look
from sglang_telemetry.checkpoint.tensors import TensorSpec
from sglang_telemetry.checkpoint.validate import verdict_of
from sglang_telemetry.preflight.findings import Check, Finding, fail, ok, warn
from sglang_telemetry.preflight.units import shown_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What is there.

    Args:
        files: Of weights; None where the folder cannot be read.
        bytes: Of all its files; None where the folder cannot be read.
        fault: What is wrong with it.
        unchecked: Why it was not looked at; it may be good or not.
    """

    files: int | None = None
    bytes: int | None = None
    fault: str | None = None
    unchecked: str | None = None


def look_at(folder: str, expected: Mapping[str, TensorSpec] | None) -> Present:
    """What is there, and what is wrong with it.

    Args:
        expected: The model's own tensors, None when they are not known.
    """
    seen, verdict = look(folder), verdict_of(folder, expected=expected)
    return Present(files=seen.files, bytes=seen.bytes, fault=verdict.fault, unchecked=verdict.unchecked)


def checkpoint(found: Present, *, asked: bool) -> Finding:
    """Is it whole?

    Args:
        found: Of :func:`look_at`.
        asked: The user named this folder, so that it has to hold one.
    """
    if not found.files and not asked and found.unchecked is None:
        return ok(Check.CHECKPOINT, "none yet: the first sync writes it")
    if found.fault is not None:
        return fail(
            Check.CHECKPOINT,
            f"{found.fault}; whatever starts from it next fails, and SGLang dies of it",
            "save it again from the trainer, or remove it",
        )
    if found.unchecked is not None:
        return warn(
            Check.CHECKPOINT,
            f"not looked at: {found.unchecked}",
            "make sure that it can be read here, or look at it on the server's side",
        )
    count = f"{found.files} file{'' if found.files == 1 else 's'} of weights"
    return ok(Check.CHECKPOINT, f"whole: {count}, {shown_bytes(found.bytes or 0)} in all")
