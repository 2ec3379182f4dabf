"""Which of its keys ``FakeSGLang`` wants, as measured on SGLang 0.5.23.

What it does with a route that has no such method, or is not there at all, is part of that: it takes it for a normal
one, so that with an api key an unknown route answers 401, not 404.
"""

from sglang_telemetry.testing.fake_state import Settings

_ADMIN = frozenset(
    (
        "/update_weights_from_disk",
        "/update_weight_version",
        "/weights_checker",
        "/flush_cache",
        "/pause_generation",
        "/continue_generation",
        "/abort_request",
    )
)
_OPEN = ("/health", "/ready", "/metrics")


def authorized(settings: Settings, method: str, path: str, has_method: bool, credentials: str) -> bool:
    """Is this request let in?

    Args:
        settings: With the keys.
        method: Of the request.
        path: Without the query.
        has_method: The route is there and has this method.
        credentials: The ``Authorization`` header, empty without one.
    """
    if method == "OPTIONS" or path.startswith(_OPEN):
        return True
    admin = path in _ADMIN and has_method
    key = (settings.admin_api_key or settings.api_key) if admin else settings.api_key
    scheme, _, token = credentials.partition(" ")
    return not key or (scheme.lower() == "bearer" and token == key)
