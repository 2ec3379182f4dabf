"""The routes of ``FakeSGLang``: which answer a request gets, without the sockets.

Status, content type and body of each route were measured on SGLang 0.5.23 and are compared with the recording of a
real server by ``tests/real_sglang``. Not there: ``/metrics``, ``/v1/completions`` and what does not concern weights.
"""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from sglang_telemetry.testing.fake_auth import authorized
from sglang_telemetry.testing.fake_bodies import parse, timeout_seconds, truth
from sglang_telemetry.testing.fake_engine import Closed, Engine, Update
from sglang_telemetry.testing.fake_faults import Answer, Fault, canned, json_answer
from sglang_telemetry.testing.fake_info import checksums, loads, model_info, models, server_info
from sglang_telemetry.testing.fake_state import Request, Settings
from sglang_telemetry.testing.fake_weights import Deadly

UPDATE = "/update_weights_from_disk"

_GET, _POST, _BOTH = ("GET",), ("POST",), ("GET", "POST")
_ROUTES: dict[str, tuple[tuple[str, ...], str]] = {
    UPDATE: (_POST, "_update"),
    "/update_weight_version": (_POST, "_version"),
    "/weights_checker": (_BOTH, "_checker"),
    "/flush_cache": (_BOTH, "_flush"),
    "/pause_generation": (_POST, "_pause"),
    "/continue_generation": (_POST, "_continue"),
    "/abort_request": (_POST, "_abort"),
    "/generate": (("POST", "PUT"), "_generate"),
    "/model_info": (_GET, "_model_info"),
    "/get_model_info": (_GET, "_model_info"),
    "/server_info": (_GET, "_server_info"),
    "/get_server_info": (_GET, "_server_info"),
    "/v1/loads": (_GET, "_loads"),
    "/v1/models": (_GET, "_models"),
    "/ready": (_GET, "_ready"),
    "/ping": (_GET, "_ping"),
    "/health": (_GET, "_health"),
    "/health_generate": (_GET, "_health"),
    "/openapi.json": (("HEAD", "GET"), "_openapi"),
}
_HANG_UP = {Fault.CLOSED_WITHOUT_ANSWER, Fault.DIES_WITHOUT_ANSWER}
_DEADLY = {Fault.DIES_WITHOUT_ANSWER, Fault.INTERNAL_ERROR_THEN_DEAD}


class Died(Exception):
    """The real server would be gone now."""


class Routes:
    """Answers requests for one life of the server."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self._healthy = True

    def answer(self, request: Request, credentials: str = "") -> Answer | None:
        """The answer, None to hang up without one.

        Args:
            credentials: The ``Authorization`` header, which the request itself does not keep.

        Raises:
            Died: After an optional answer (its only argument) the server is gone.
            Closed: It went away while this request waited.
        """
        path = urlsplit(request.path).path
        methods, name = _ROUTES.get(path, ((), ""))
        if not authorized(self.settings, request.method, path, request.method in methods, credentials):
            return json_answer(401, {"error": "Unauthorized"})
        if not methods:
            return json_answer(404, {"detail": "Not Found"})
        if request.method not in methods:
            allow = (("Allow", ", ".join(methods)),)
            return json_answer(405, {"detail": "Method Not Allowed"}, headers=allow)
        handle: Callable[[Request], Answer | None] = getattr(self, name)
        try:
            return handle(request)
        except Deadly as death:
            self._sleep(self.settings.death_seconds)
            raise Died(None) from death

    def _parse(self, request: Request) -> dict[str, Any] | Answer:
        path = urlsplit(request.path).path
        return parse(path, request.method, request.body, request.headers.get("content-type", ""))

    def _update(self, request: Request) -> Answer | None:
        try:
            injected = self.settings.faults.popleft()
        except IndexError:
            return self._apply(request, None)
        fault = injected.fault
        self._sleep(injected.seconds)
        if fault is Fault.NEVER_ANSWERS:
            self.engine.closed.wait()
            raise Closed
        if fault is Fault.STAYS_PAUSED:
            self.engine.pause("retract")
        if fault in _DEADLY:
            raise Died(canned(fault, ""))
        if fault in _HANG_UP:
            return None
        if fault is Fault.VALIDATION_ERROR:
            content = {"model_path": _path_of(request), "weight_version": 3}
            body = json.dumps(content).encode()
            refused = parse(UPDATE, "POST", body, "application/json")
            return refused if isinstance(refused, Answer) else None
        if fault in {Fault.BUSY_WEIGHTS_APPLIED, Fault.ROLLBACK_TEXT, Fault.GATEWAY_TIMEOUT_HTML}:
            answer = self._apply(request, fault)
            loaded = answer.status == 200 or fault is Fault.BUSY_WEIGHTS_APPLIED
            return canned(fault, "") if loaded else answer
        fixed = canned(fault, _path_of(request))
        return self._apply(request, fault) if fixed is None else fixed

    def _apply(self, request: Request, fault: Fault | None) -> Answer:
        body = self._parse(request)
        if isinstance(body, Answer):
            return body
        update = Update(
            model_path=body["model_path"],
            load_format=body.get("load_format"),
            weight_version=body.get("weight_version"),
            flush_cache=truth(body.get("flush_cache", True)),
            abort_all_requests=truth(body.get("abort_all_requests", False)),
        )
        return self.engine.update(update, fault)

    def _version(self, request: Request) -> Answer:
        body = self._parse(request)
        if isinstance(body, Answer):
            return body
        version = body["new_version"]
        self.engine.set_version(version, abort=truth(body.get("abort_all_requests", True)))
        message = f"Weight version updated to {version}"
        return json_answer(200, {"success": True, "message": message, "new_version": version})

    def _checker(self, request: Request) -> Answer:
        body = self._parse(request) if request.body else {}
        if isinstance(body, Answer):
            return body
        action = body.get("action", "checksum")
        if action == "snapshot":
            return json_answer(200, {"success": True, "message": "Success."})
        if action != "checksum":
            known = {"compare": "Torch not compiled with CUDA enabled"}
            message = known.get(action, f"Unsupported action={action!r}")
            return json_answer(400, {"success": False, "message": message})
        return json_answer(200, checksums(self.engine))

    def _flush(self, request: Request) -> Answer:
        seconds = timeout_seconds(urlsplit(request.path).query)
        return seconds if isinstance(seconds, Answer) else self.engine.flush(seconds)

    def _pause(self, request: Request) -> Answer:
        body = self._parse(request)
        if isinstance(body, Answer):
            return body
        self.engine.pause(body.get("mode", "abort"))
        return json_answer(200, {"message": "Generation paused successfully.", "status": "ok"})

    def _continue(self, request: Request) -> Answer:
        body = self._parse(request)
        if isinstance(body, Answer):
            return body
        self.engine.resume()
        return json_answer(200, {"message": "Generation continued successfully.", "status": "ok"})

    def _abort(self, _request: Request) -> Answer:
        self.engine.abort_all()
        return Answer()

    def _generate(self, request: Request) -> Answer:
        try:
            body = json.loads(request.body)
            if not {"text", "input_ids", "input_embeds"} & body.keys():
                message = "Either text, input_ids or input_embeds should be provided."
                return json_answer(400, {"error": {"message": message}})
            tokens = int(body.get("sampling_params", {}).get("max_new_tokens", 16))
            seconds = float(body.get("seconds", 0.0))
        except (ValueError, TypeError, AttributeError):
            return json_answer(400, {"error": {"message": "The body is not a generate request."}})
        return json_answer(200, self.engine.generate(tokens, seconds))

    def _model_info(self, _request: Request) -> Answer:
        return json_answer(200, model_info(self.engine))

    def _server_info(self, _request: Request) -> Answer:
        return json_answer(200, server_info(self.engine, self.settings))

    def _loads(self, _request: Request) -> Answer:
        return json_answer(200, loads(self.engine))

    def _openapi(self, _request: Request) -> Answer:
        paths: dict[str, dict[str, Any]] = {
            path: {method.lower(): {} for method in methods} for path, (methods, _) in _ROUTES.items()
        }
        del paths["/openapi.json"]
        about = {"openapi": "3.1.0", "info": {"title": "FastAPI", "version": "0.1.0"}}
        return json_answer(200, about | {"paths": paths})

    def _models(self, _request: Request) -> Answer:
        return json_answer(200, models(self.engine))

    def _ready(self, _request: Request) -> Answer:
        return Answer(status=200 if self.engine.paused is None and self._healthy else 503)

    def _ping(self, _request: Request) -> Answer:
        return Answer(status=200 if self._healthy else 503)

    def _health(self, _request: Request) -> Answer:
        """Generates a token: 1 s, or 503 after 20 s while paused; then ``/ready`` stays 503 until the next success."""
        self._sleep(self.settings.health_seconds * (1 if self.engine.paused is None else 20))
        self._healthy = self.engine.paused is None
        return Answer(status=200 if self._healthy else 503)

    def _sleep(self, seconds: float) -> None:
        if seconds and self.engine.closed.wait(seconds):
            raise Closed


def _path_of(request: Request) -> str:
    try:
        return str(json.loads(request.body)["model_path"])
    except (ValueError, KeyError, TypeError):
        return ""
