"""What ``FakeSGLang`` says of itself, in the shapes measured on SGLang 0.5.23."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sglang_telemetry.testing.fake_engine import Engine, Label
from sglang_telemetry.testing.fake_state import Settings

_LOAD = (
    "timestamp",
    "dp_rank",
    "num_running_reqs",
    "num_waiting_reqs",
    "num_waiting_uncached_tokens",
    "num_used_tokens",
    "num_total_tokens",
    "num_active_tokens",
    "num_prealloc_ready_tokens",
    "max_total_num_tokens",
    "max_running_requests",
    "token_usage",
    "gen_throughput",
    "cache_hit_rate",
    "utilization",
    "total_prefill_uncached_tokens",
    "total_prefill_busy_us",
    "decode_moments",
)
"""The core fields of a load (source of SGLang 0.5.23, and compared with a real one)."""
VERSION = "0.5.23"
"""The SGLang that was measured."""


def model_info(engine: Engine) -> dict[str, Any]:
    """``/model_info``: the label of the process that serves HTTP; after an update the name it serves is the path."""
    label, start = engine.http, engine.start
    model_type, architectures = _architecture(start.model_path)
    return {
        "model_path": label.model_path,
        "served_model_name": label.model_path,
        "tokenizer_path": start.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": label.weight_version,
        "load_format": label.load_format,
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": model_type,
        "architectures": architectures,
    }


def server_info(engine: Engine, settings: Settings) -> dict[str, Any]:
    """``/server_info``: start values at the top, the scheduler's in ``internal_states``.

    The real one has the keys in both places and in ``launch_command`` as they are; here they are hidden.
    """
    start, live = _settings(engine, engine.start, settings), _settings(engine, engine.scheduler, settings)
    return {**start, "status": "ready", "internal_states": [live], "version": VERSION, "frontend": "python"}


def loads(engine: Engine) -> dict[str, Any]:
    """``/v1/loads?include=core``: the version, and how busy each replica is; there is one, and it has no cache."""
    load: dict[str, Any] = dict.fromkeys(_LOAD, 0)
    load |= dict.fromkeys(("token_usage", "gen_throughput", "cache_hit_rate", "utilization"), 0.0)
    load |= {"timestamp": time.time(), "num_running_reqs": engine.running, "decode_moments": None}
    at = datetime.now(UTC).isoformat()
    return {"timestamp": at, "version": VERSION, "accelerator": "cpu", "num_accelerators": 1, "loads": [load]}


def models(engine: Engine) -> dict[str, Any]:
    """``/v1/models``: one, named by its path."""
    path = engine.http.model_path
    model = {"id": path, "object": "model", "created": int(time.time()), "owned_by": "sglang"}
    return {"object": "list", "data": [model | {"root": path, "parent": None, "max_model_len": 4096}]}


def checksums(engine: Engine) -> dict[str, Any]:
    """``/weights_checker``: of the bytes that are loaded. The real one fuses tensors, so it has other names in it."""
    whole = engine.checksum
    sizes = {"tp_rank": 0, "tp_size": 1, "dp_rank": 0, "dp_size": 1, "pp_rank": 0, "pp_size": 1, "rank": 0, "size": 1}
    rank = {
        "checksums": {name: tensor.digest[:16] for name, tensor in engine.weights.items()},
        "per_gpu_checksum": whole[::-1],
        "parallelism_info": [{"role": "target", **sizes}],
    }
    return {"success": True, "message": "Success.", "ranks": [rank], "per_engine_checksum": whole}


def _settings(engine: Engine, label: Label, settings: Settings) -> dict[str, Any]:
    return {
        "model_path": label.model_path,
        "tokenizer_path": engine.start.model_path,
        "served_model_name": engine.start.model_path,
        "load_format": label.load_format,
        "weight_version": label.weight_version,
        "tp_size": 1,
        "dp_size": 1,
        "tokenizer_worker_num": 1,
        "enable_memory_saver": False,
        "api_key": "***" if settings.api_key is not None else None,
        "admin_api_key": "***" if settings.admin_api_key is not None else None,
    }


def _architecture(model_path: str) -> tuple[str, list[str]]:
    """``model_type`` and ``architectures`` of a checkpoint's ``config.json``."""
    try:
        config = json.loads((Path(model_path) / "config.json").read_text())
        return str(config["model_type"]), list(config["architectures"])
    except (OSError, ValueError, KeyError, TypeError):
        return "qwen2", ["Qwen2ForCausalLM"]
