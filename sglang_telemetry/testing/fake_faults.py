"""The named faults of ``FakeSGLang``: what a weight update can meet, and the answer that the client then gets.

Those marked *measured* repeat what SGLang 0.5.23 answered; those marked *source* repeat its text as read in its source;
the others are what stands between a trainer and its server: routers, proxies, other programs, other versions.
"""

import json
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """What the next ``POST /update_weights_from_disk`` meets."""

    BUSY_WEIGHTS_APPLIED = "busy_weights_applied"
    """400 "Weights were updated, but the cache was not flushed": the weights ARE new, ``/model_info`` shows the old
    version, ``/server_info`` the new one (measured, with ``pause in_place``)."""
    NOT_APPLIED = "not_applied"
    """200 and success, and nothing changed: a router that does not pass it on to this worker."""
    LABEL_WITHOUT_WEIGHTS = "label_without_weights"
    """200 and success, the version and the path are the new ones, the weights are not."""
    ROLLBACK_TEXT = "rollback_text"
    """400 "Failed to update weights: ... Rolling back to original weights.": there is no rollback. After an error that
    was gone on the second read the weights ARE new, version and path are the old ones (source)."""
    SUCCESS_FALSE = "success_false"
    """200 with ``success: false``; nothing changed."""
    STAYS_PAUSED = "stays_paused"
    """400, nothing changed, and the engine is paused until somebody sends ``/continue_generation``: ``/ready`` answers
    503 while ``/server_info`` answers 200 (measured: a 400 while paused leaves it paused)."""
    OUT_OF_MEMORY = "out_of_memory"
    """400 with the text of a CUDA out-of-memory error in the frame of a failed update (source); nothing changed."""

    DIES_WITHOUT_ANSWER = "dies_without_answer"
    """The connection is closed without an answer and the process is gone (measured: truncated file, wrong shape,
    unknown load format; there it takes 5 s)."""
    INTERNAL_ERROR_THEN_DEAD = "internal_error_then_dead"
    """500 ``Internal Server Error`` as plain text, then the process is gone."""
    CLOSED_WITHOUT_ANSWER = "closed_without_answer"
    """The connection is closed without an answer, the server lives on and nothing changed."""
    SLOW = "slow"
    """The update is done ``seconds`` late; it is applied also when the client has given up (measured)."""
    NEVER_ANSWERS = "never_answers"
    """The request is read, nothing changes and no answer comes."""

    UNAUTHORIZED = "unauthorized"
    """401 ``{"error":"Unauthorized"}`` (measured)."""
    FORBIDDEN = "forbidden"
    """403 ``{"error":"Forbidden"}`` (source)."""
    NOT_FOUND = "not_found"
    """404 ``{"detail":"Not Found"}`` (measured: an unknown route)."""
    METHOD_NOT_ALLOWED = "method_not_allowed"
    """405 ``{"detail":"Method Not Allowed"}`` (measured: a GET)."""
    VALIDATION_ERROR = "validation_error"
    """400 in SGLang's error envelope (measured: a ``weight_version`` that is not a string)."""
    PATH_NOT_VISIBLE = "path_not_visible"
    """400 "Repo id must be in the form ...": the folder is complete here and the server does not see it (measured: a
    folder that is not there)."""
    INCOMPLETE_SHARDS = "incomplete_shards"
    """400 "... references 1 shard file(s) missing from ... (incomplete download?)" (measured)."""
    UPDATE_IN_PROGRESS = "update_in_progress"
    """409: an update is already active. Not SGLang 0.5.23, which queues or dies; routers and other versions."""
    RATE_LIMITED = "rate_limited"
    """429 of a gateway."""
    REDIRECTED = "redirected"
    """307 to an address where nobody is."""
    SERVICE_UNAVAILABLE = "service_unavailable"
    """503 without a body."""
    PROXY_503_HTML = "proxy_503_html"
    """503 with the HTML page of a proxy."""
    GATEWAY_TIMEOUT_HTML = "gateway_timeout_html"
    """504 with the HTML page of a proxy that gave up waiting; the update is applied all the same."""
    WRONG_PROGRAM = "wrong_program"
    """200 with HTML: another program listens on that port."""
    EMPTY_SUCCESS = "empty_success"
    """200 without a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What goes back over the wire.

    Args:
        status: HTTP status code.
        body: The bytes of the body.
        content_type: None for none, as SGLang sends with its empty and its plain-text bodies.
        headers: Further headers.
    """

    status: int = 200
    body: bytes = b""
    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


def json_answer(status: int, content: object, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """An answer in the compact JSON that SGLang writes."""
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    return Answer(status=status, body=body, content_type="application/json", headers=headers)


def update_answer(message: str, success: bool = False, status: int | None = None) -> Answer:
    """The body of ``/update_weights_from_disk``, with 200 or 400 after its success (measured on SGLang 0.5.23)."""
    content = {"success": success, "message": message, "num_paused_requests": 0}
    return json_answer((200 if success else 400) if status is None else status, content)


def envelope(message: str) -> Answer:
    """SGLang's error envelope: 400, not the 422 of FastAPI (measured on SGLang 0.5.23)."""
    content = {"object": "error", "message": message, "type": "Bad Request", "param": None, "code": 400}
    return json_answer(400, content)


def _page(status: int, title: str, server: str) -> Answer:
    body = (
        f"<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}</h1></center>\r\n"
        f"<hr><center>{server}</center>\r\n</body>\r\n</html>\r\n"
    )
    return Answer(status=status, body=body.encode(), content_type="text/html")


SUCCEEDED = "Succeeded to update model weights."
BUSY = (
    "Weights were updated, but the cache was not flushed because requests are still running or queued. "
    "Retract or finish them, then call /flush_cache."
)
NO_FOLDER = (
    "Failed to get weights iterator: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. "
    "Use `repo_type` argument if needed.."
)
LOST_SHARDS = (
    "Failed to get weights iterator: {index} references {count} shard file(s) missing from {path} "
    "(incomplete download?): {names}."
)
_ROLLBACK = "\nRolling back to original weights."
_IO_ERROR = "Failed to update weights: [Errno 5] Input/output error." + _ROLLBACK
_OUT_OF_MEMORY = (
    "Failed to update weights: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 614.56 MiB is free. Process 4242 has 78.50 GiB memory in use.." + _ROLLBACK
)

_UNCHANGED = {
    Fault.NOT_APPLIED: update_answer(SUCCEEDED, success=True),
    Fault.SUCCESS_FALSE: update_answer("The weights were not updated.", status=200),
    Fault.STAYS_PAUSED: update_answer("Failed to get weights iterator: [Errno 116] Stale file handle."),
    Fault.OUT_OF_MEMORY: update_answer(_OUT_OF_MEMORY),
    Fault.INTERNAL_ERROR_THEN_DEAD: Answer(
        status=500, body=b"Internal Server Error", content_type="text/plain; charset=utf-8"
    ),
    Fault.UNAUTHORIZED: json_answer(401, {"error": "Unauthorized"}),
    Fault.FORBIDDEN: json_answer(403, {"error": "Forbidden"}),
    Fault.NOT_FOUND: json_answer(404, {"detail": "Not Found"}),
    Fault.METHOD_NOT_ALLOWED: json_answer(405, {"detail": "Method Not Allowed"}),
    Fault.UPDATE_IN_PROGRESS: update_answer("Another weight update is already in progress.", status=409),
    Fault.RATE_LIMITED: json_answer(429, {"error": "Too Many Requests"}, headers=(("Retry-After", "1"),)),
    Fault.REDIRECTED: Answer(status=307, headers=(("Location", "http://127.0.0.1:9/update_weights_from_disk"),)),
    Fault.SERVICE_UNAVAILABLE: Answer(status=503),
    Fault.PROXY_503_HTML: _page(503, "503 Service Temporarily Unavailable", "nginx"),
    Fault.WRONG_PROGRAM: _page(200, "Welcome to nginx!", "nginx"),
    Fault.EMPTY_SUCCESS: Answer(),
}
_APPLIED = {
    Fault.BUSY_WEIGHTS_APPLIED: update_answer(BUSY),
    Fault.ROLLBACK_TEXT: update_answer(_IO_ERROR),
    Fault.GATEWAY_TIMEOUT_HTML: _page(504, "504 Gateway Time-out", "nginx"),
}


def canned(fault: Fault, path: str) -> Answer | None:
    """The fixed answer to an update of ``path``, None for a fault that has none (it closes, waits or acts)."""
    match fault:
        case Fault.PATH_NOT_VISIBLE:
            return update_answer(NO_FOLDER.format(path=path))
        case Fault.INCOMPLETE_SHARDS:
            index, names = "model.safetensors.index.json", ["model-00002-of-00002.safetensors"]
            return update_answer(LOST_SHARDS.format(index=index, count=1, path=path, names=names))
    return _UNCHANGED.get(fault) or _APPLIED.get(fault)
