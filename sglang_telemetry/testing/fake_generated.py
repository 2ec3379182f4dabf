"""The canned text of ``FakeSGLang``'s ``/generate``, with the weight versions that took part."""

import time
from typing import Any


def generated(versions: list[tuple[str, int]], tokens: int, aborted: bool, retractions: int) -> dict[str, Any]:
    """The body of ``/generate`` as SGLang 0.5.23 writes it (measured)."""
    ends = [start for _, start in versions[1:]] + [tokens]
    spans = [{"version": v, "start": s, "end": e} for (v, s), e in zip(versions, ends, strict=True)]
    reason: dict[str, Any] = {"type": "length", "length": tokens}
    if aborted:
        reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    meta = {
        "id": f"{time.monotonic_ns():032x}",
        "finish_reason": reason,
        "prompt_tokens": 2,
        "weight_version": versions[-1][0],
        "num_retractions": retractions,
        "reasoning_tokens": 0,
        "completion_tokens": tokens,
        "cached_tokens": 0,
        "weight_versions": spans,
        "cached_tokens_details": None,
        "dp_rank": None,
    }
    return {"text": " fox" * tokens, "output_ids": [123] * tokens, "meta_info": meta}
