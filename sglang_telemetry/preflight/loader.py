"""Does the way in which the server loads weights allow an update from disk? Read in SGLang 0.5.23."""

from sglang_telemetry.preflight.findings import A_DRY_RUN, Check, Finding, fail, ok, warn
from sglang_telemetry.server_truth.facts import ServerFacts

_REFUSES = frozenset(
    (
        "bitsandbytes",
        "dummy",
        "expert_pack",
        "gguf",
        "ipc_cache",
        "jax",
        "layered",
        "local_cached",
        "presharded",
        "rdma",
        "remote",
        "remote_instance",
        "runai_streamer",
        "sharded_state",
    )
)
"""Their loaders refuse an update from disk: 400, "Failed to get model loader" or "Unknown load_format"."""
_ONLY = {"pt": "*.pt", "npcache": "*.bin"}


def loader(facts: ServerFacts) -> Finding | None:
    """Will it take an update? None when it does not say how it loads."""
    if facts.weight_cache_mode not in {None, "off"}:
        return fail(
            Check.LOADER,
            f"started with --weight-cache-mode {facts.weight_cache_mode}: an update from disk kills it",
            "start it with --weight-cache-mode off",
        )
    load_format = facts.load_format
    if load_format is None:
        return None
    if load_format in _REFUSES:
        return fail(
            Check.LOADER,
            f"started with --load-format {load_format}: it refuses updates from disk that name no other format",
            "start it with --load-format auto",
        )
    if load_format in _ONLY:
        return warn(
            Check.LOADER,
            f"started with --load-format {load_format}: it finds only {_ONLY[load_format]} in a checkpoint",
            "start it with --load-format auto",
        )
    if facts.draft_model is not None:
        return warn(
            Check.LOADER,
            f"it has a draft model ({facts.draft_model}), into which an update from disk is loaded as well",
            "start it without --speculative-draft-model-path, or sync another way than by disk",
        )
    if facts.quantization is not None:
        return warn(
            Check.LOADER,
            f"its weights are quantised ({facts.quantization}); what an update does to them was not measured",
            f"try one update before the training: {A_DRY_RUN}",
        )
    return ok(Check.LOADER, f"--load-format {load_format} takes updates from disk")
