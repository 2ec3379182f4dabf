"""A stand-in for an SGLang server that answers weight syncs as the real one does, and fails as it is told to.

It needs no torch and no GPU. In-process it is a few threads; spawned, it is a process of its own that really dies. It
behaves like SGLang 0.5.23 did where that was measured; ``tests/real_sglang`` compares the two.
"""

import argparse
import base64
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_telemetry.testing.fake_faults import Fault
from sglang_telemetry.testing.fake_http import Life
from sglang_telemetry.testing.fake_state import Injected, Request, ServerState, Settings

if TYPE_CHECKING:
    from sglang_telemetry.testing.fake_process import FakeSGLangProcess

__all__ = ["FakeSGLang", "ServerState", "main"]

_SLOW_SECONDS = 1.0


class FakeSGLang:
    """An SGLang server on the loopback, in this process; it listens as soon as it is made.

    When the real one would die, this one closes its listening socket and its connections, so that later connections
    are refused; ``restart()`` brings it back with its start weights.

    Args:
        model_path: The checkpoint folder that it starts with; shapes of later ones are compared with it if it exists.
        admin_api_key: Wanted as a bearer token by every route that changes something.
        api_key: Wanted by all other routes, and without ``admin_api_key`` by those too.
        faults: What the first updates meet, one each.
        health_seconds: How long ``/health`` takes; 1 s measured on SGLang 0.5.23, and 20 times that while paused.
        death_seconds: How long it takes to die of a bad checkpoint; 5 s measured on SGLang 0.5.23.
        port: Where to listen; 0 for a free port.
    """

    def __init__(
        self,
        model_path: str | Path = "start-model",
        *,
        admin_api_key: str | None = None,
        api_key: str | None = None,
        faults: Sequence[Fault] = (),
        health_seconds: float = 0.0,
        death_seconds: float = 0.0,
        port: int = 0,
    ) -> None:
        self._settings = Settings(
            model_path=str(model_path),
            admin_api_key=admin_api_key,
            api_key=api_key,
            health_seconds=health_seconds,
            death_seconds=death_seconds,
        )
        self._lock = threading.RLock()
        self._dead = threading.Event()
        for fault in faults:
            self.inject(fault)
        self._life = self._new_life(port)
        self._port = self._life.port

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """Its TCP port; the same over restarts."""
        return self._port

    @property
    def host_port(self) -> str:
        """Where it listens, as the ``server`` label has it."""
        return f"127.0.0.1:{self._port}"

    @property
    def alive(self) -> bool:
        """Whether it listens."""
        return not self._dead.is_set()

    @property
    def requests(self) -> tuple[Request, ...]:
        """Every request that it read, over all its lives, in order."""
        return tuple(self._settings.requests)

    @property
    def updates(self) -> tuple[Request, ...]:
        """Those that were sent to ``/update_weights_from_disk``."""
        return tuple(request for request in self.requests if request.path == "/update_weights_from_disk")

    def inject(self, fault: Fault, times: int = 1, seconds: float | None = None) -> None:
        """Let the next updates that are let in meet a fault; then the server is itself again.

        Args:
            fault: Which one; faults are met in the order in which they were injected.
            times: How many updates meet it.
            seconds: How long each waits first; 1 s for ``Fault.SLOW`` and 0 for the others unless given.
        """
        if seconds is None:
            seconds = _SLOW_SECONDS if fault is Fault.SLOW else 0.0
        self._settings.faults.extend([Injected(fault=fault, seconds=seconds)] * times)

    def state(self) -> ServerState:
        """What it holds now, or held when it died."""
        engine = self._life.engine
        return ServerState(
            model_path=engine.http.model_path,
            weight_version=engine.http.weight_version,
            scheduler_weight_version=engine.scheduler.weight_version,
            checksum=engine.checksum,
            updates_applied=engine.applied,
            paused=engine.paused,
            running=engine.running,
            pending_faults=tuple(injected.fault for injected in self._settings.faults),
        )

    def kill(self) -> None:
        """Be gone at once, as a process that was killed."""
        with self._lock:
            if self.alive:
                self._dead.set()
                self._life.end()

    def wait_dead(self, timeout: float = 10.0) -> None:
        """Wait until it is gone.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            TimeoutError: It still listens.
        """
        if not self._dead.wait(timeout):
            raise TimeoutError(f"the server at {self.host_port} still listens after {timeout:g} s")
        with self._lock:
            return  # whoever ended it has finished

    def restart(self) -> None:
        """Listen on the same port again, with the start weights, version ``default`` and not paused."""
        with self._lock:
            self.kill()
            self._life = self._new_life(self._port)

    def close(self) -> None:
        """Stop for good; no thread of it is left, also not of a request that was never answered."""
        self.kill()

    @classmethod
    def spawn(
        cls,
        model_path: str | Path = "start-model",
        *,
        admin_api_key: str | None = None,
        api_key: str | None = None,
        faults: Sequence[Fault] = (),
        health_seconds: float = 0.0,
        death_seconds: float = 0.0,
        port: int = 0,
    ) -> "FakeSGLangProcess":
        """Run one as a process of its own, which really dies of what the real one dies of.

        Args:
            model_path: As in the constructor, like all the others.

        Raises:
            RuntimeError: The process did not start.
        """
        from sglang_telemetry.testing.fake_process import FakeSGLangProcess

        settings = Settings(
            model_path=str(model_path),
            admin_api_key=admin_api_key,
            api_key=api_key,
            health_seconds=health_seconds,
            death_seconds=death_seconds,
        )
        process = FakeSGLangProcess(settings, port)
        for fault in faults:
            process.inject(fault)
        return process

    def __enter__(self) -> "FakeSGLang":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FakeSGLang(url={self.url!r}, alive={self.alive})"

    def _new_life(self, port: int) -> Life:
        life = Life(self._settings, port, on_death=self._died)
        self._dead.clear()
        return life

    def _died(self, life: Life) -> None:
        """A request ended that life; whoever else is ending it already waits for this request's thread."""
        if self._lock.acquire(blocking=False):
            try:
                if life is self._life:
                    self.kill()
            finally:
                self._lock.release()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until killed; prints its URL when it listens."""
    parser = argparse.ArgumentParser(description="A stand-in for an SGLang server.")
    parser.add_argument("--port", type=int, default=0, help="0 for a free one")
    parser.add_argument("--model-path", default="start-model", help="checkpoint folder to start with")
    parser.add_argument("--admin-api-key-file", type=Path, help="file with the key that admin routes want")
    parser.add_argument("--api-key-file", type=Path, help="file with the key that the other routes want")
    parser.add_argument("--health-seconds", type=float, default=0.0, help="how long /health takes")
    parser.add_argument("--death-seconds", type=float, default=0.0, help="how long it takes to die of a bad checkpoint")
    parser.add_argument("--control", action="store_true", help=argparse.SUPPRESS)  # orders on stdin, ends with it
    options = parser.parse_args(arguments)
    server = FakeSGLang(
        options.model_path,
        admin_api_key=_key_in(options.admin_api_key_file),
        api_key=_key_in(options.api_key_file),
        health_seconds=options.health_seconds,
        death_seconds=options.death_seconds,
        port=options.port,
    )
    server._life.on_death = _die
    print(server.url, flush=True)
    try:
        if not options.control:
            threading.Event().wait()
        for line in sys.stdin:
            print(json.dumps(_obey(server, json.loads(line))), flush=True)
    except KeyboardInterrupt:
        pass
    os._exit(0)


def _key_in(file: Path | None) -> str | None:
    return file.read_text().strip() if file is not None else None


def _die(_life: Life) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _obey(server: FakeSGLang, order: dict[str, Any]) -> Any:
    """One line of the handle's: its answer is one line too."""
    match order["do"]:
        case "inject":
            server.inject(Fault(order["fault"]), times=order["times"], seconds=order["seconds"])
            return None
        case "state":
            return asdict(server.state())
        case "requests":
            return [asdict(got) | {"body": base64.b64encode(got.body).decode()} for got in server.requests]
    raise ValueError(order["do"])


if __name__ == "__main__":
    main()
