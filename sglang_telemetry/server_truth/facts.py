"""What was found out about one server, as plain values; None is unknown everywhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sglang_telemetry.server_truth.client import ModelInfo, StartedWith
from sglang_telemetry.server_truth.no_answer import NoAnswer, Why


class Program(StrEnum):
    """What listens there."""

    SGLANG = "sglang"
    SGLANG_ROUTER = "sglang_router"
    VLLM = "vllm"
    OTHER = "other"


class Access(StrEnum):
    """How a group of routes treats the keys that are set here.

    ``missing``: it wants a key, and none is set. ``unsent``: it wants one, and its certificate is not trusted.
    """

    OPEN = "open"
    ACCEPTED = "accepted"
    MISSING = "missing"
    REFUSED = "refused"
    UNSENT = "unsent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What one part of a server says of its weights."""

    model_path: str | None = None
    weight_version: str | None = None
    load_format: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What :func:`~sglang_telemetry.server_truth.examine.examine` found.

    Args:
        url: What was asked.
        why: Why there was no answer.
        program: What it is; SGLang also where it refuses to say more without a key.
        looks_like: The same as a text, with what it calls itself.
        version: SGLang's, or that of the program that it is instead.
        ready: Of ``/ready``: false while it is paused or unhealthy.
        ready_status: The status of that.
        healthy: Of ``/ping``: true also while it is paused (source of SGLang 0.5.23).
        info: What the process that serves HTTP says of the weights.
        info_status: Status of ``/model_info``.
        start: What it was started with.
        live: What the schedulers say of the weights, one for each data-parallel replica.
        server_info_status: Status of ``/server_info``; None also when it did not answer in time, as during a load.
            Only with 200 it is known how the server was started.
        weight_cache_mode: With another than ``off`` an update kills SGLang 0.5.23 (source).
        quantization: Such as ``fp8``.
        draft_model: Of speculative decoding; an update from disk is loaded into it too (source of SGLang 0.5.23).
        started_with: With more than one tokenizer worker, SGLang 0.5.23 does not enforce the admin key (source).
        routes: Which of the routes around weights it has; those that cannot be told are left out.
        access: How ``/model_info`` and the like treat the key.
        admin_access: How ``/weights_checker`` and the like do.
        old_names: It has no ``/model_info``, but only ``/get_model_info``.
        key_error: Why a key was not sent.
        clock_skew: Seconds that its clock is ahead of ours; right to about 1 s (SGLang 0.5.23, measured).
    """

    url: str
    why: Why | None = None
    program: Program | None = None
    looks_like: str | None = None
    version: str | None = None
    ready: bool | None = None
    ready_status: int | None = None
    healthy: bool | None = None
    info: ModelInfo | None = None
    info_status: int | None = None
    start: Label | None = None
    live: tuple[Label, ...] = ()
    server_info_status: int | None = None
    weight_cache_mode: str | None = None
    quantization: str | None = None
    draft_model: str | None = None
    started_with: StartedWith | None = None
    routes: Mapping[str, bool] = field(default_factory=dict)
    access: Access | None = None
    admin_access: Access | None = None
    old_names: bool = False
    key_error: Why | None = None
    clock_skew: float | None = field(default=None, compare=False)

    @property
    def failure(self) -> NoAnswer | None:
        """Why there was no answer, as one of a closed set."""
        return self.why.failure if self.why is not None else None

    @property
    def load_format(self) -> str | None:
        """What an update without one of its own is loaded with."""
        label = self.live[0] if self.live else self.start
        return label.load_format if label is not None else None

    @property
    def paused(self) -> bool | None:
        """Generation is held back, and the server is well."""
        if self.ready is None or (self.healthy is None and not self.ready):
            return None
        return not self.ready and bool(self.healthy)

    @property
    def labels_agree(self) -> bool | None:
        """All parts of the server name the same weights; not so after a 400 while paused (SGLang 0.5.23, measured)."""
        shown = {(label.model_path, label.weight_version) for label in self.live}
        if self.info is not None:
            shown.add((self.info.model_path, self.info.weight_version))
        return len(shown) == 1 if self.live and self.info is not None else None
