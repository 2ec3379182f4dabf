"""Makes each failure of ``tests/e2e/by_cause.py`` happen, in a run of its own.

The one decision: a step follows when the last one has been seen, in Prometheus or by the server, never after a time.
"""

import signal
from collections.abc import Callable

from sglang_telemetry.testing import FakeSGLang, Fault
from tests.harness.answers import SUCCESS, Answers
from tests.harness.mounts import fill, tmpfs
from tests.harness.processes import free_port, wait_until
from tests.harness.scene import Scene

_PAGE = b"<html><head><title>503 Service Temporarily Unavailable</title></head><body>squid</body></html>"


def provoke(scene: Scene, run: str) -> None:
    """Make the failure of the row of that name."""
    _STEPS[run](scene, run)


def _fault(fault: Fault, timeout: float = 20.0) -> Callable[[Scene, str], None]:
    """The one update meets a fault."""

    def steps(scene: Scene, run: str) -> None:
        scene.trainer(run, scene.server(fault).url, timeout=timeout).sync()

    return steps


def _fault_and_goes_on(fault: Fault, weights: str = "whole") -> Callable[[Scene, str], None]:
    """The server has been seen up, then an update meets a fault, and the run goes on."""

    def steps(scene: Scene, run: str) -> None:
        server = scene.server(fault)
        trainer = scene.trainer(run, server.url, then="goes_on")
        scene.wait_seen_up(server.host_port)
        trainer.sync(weights)

    return steps


def _weights(weights: str) -> Callable[[Scene, str], None]:
    """The trouble is the trainer's own."""

    def steps(scene: Scene, run: str) -> None:
        scene.trainer(run, scene.server().url).sync(weights)

    return steps


def _unreachable(then: str) -> Callable[[Scene, str], None]:
    def steps(scene: Scene, run: str) -> None:
        scene.trainer(run, f"http://127.0.0.1:{free_port()}", then=then).sync()

    return steps


def _disk_full(scene: Scene, run: str) -> None:
    folder = scene.stack.enter_context(tmpfs(scene.folder / run))
    fill(folder)
    scene.trainer(run, scene.server().url, folder=folder).sync()


def _disk_full_goes_on(scene: Scene, run: str) -> None:
    folder = scene.stack.enter_context(tmpfs(scene.folder / run))
    trainer = scene.trainer(run, scene.server().url, folder=folder, then="goes_on")
    trainer.sync()
    scene.prometheus.wait_for(f'weight_sync_attempts_total{{run="{run}",result="success"}} == 1', 60)
    fill(folder)
    trainer.sync()


def _read_only(scene: Scene, run: str) -> None:
    folder = scene.stack.enter_context(tmpfs(scene.folder / run, read_only=True))
    scene.trainer(run, scene.server().url, folder=folder).sync()


def _proxy(scene: Scene, run: str) -> None:
    proxy = scene.stack.enter_context(Answers((503, _PAGE)))
    scene.trainer(run, scene.server().url, proxy=proxy.url).sync()
    wait_until(lambda: proxy.requests, "the proxy was asked", 60)


def _unauthorized(scene: Scene, run: str) -> None:
    scene.trainer(run, scene.server(key="secret").url).sync()


def _dies(then: str, weights: str, *faults: Fault) -> Callable[[Scene, str], None]:
    """The server is a process, and is gone instead of an answer."""

    def steps(scene: Scene, run: str) -> None:
        server = scene.stack.enter_context(FakeSGLang.spawn(faults=faults))
        trainer = scene.trainer(run, server.url, then=then)
        if then == "goes_on":
            scene.wait_seen_up(server.host_port)
        trainer.sync(weights)
        server.wait_dead(60)

    return steps


def _comes_back(scene: Scene, run: str) -> None:
    """One good sync, one that kills the server, and its supervisor starts it again."""
    server = scene.stack.enter_context(FakeSGLang.spawn())
    trainer = scene.trainer(run, server.url, then="goes_on")
    scene.wait_seen_up(server.host_port)
    trainer.sync()
    scene.prometheus.wait_for(f'weight_sync_server_current{{run="{run}"}} == 1', 60)
    server.inject(Fault.DIES_WITHOUT_ANSWER)
    trainer.sync()
    server.wait_dead(60)
    scene.prometheus.wait_for(f'weight_sync_server_up{{server="{server.host_port}"}} == 0', 60)
    server.restart()


def _continues_stale(scene: Scene, run: str) -> None:
    """One good sync, and one that fails over which the run goes on."""
    server = scene.server()
    trainer = scene.trainer(run, server.url, then="goes_on", remedies="on_failure=continue_stale,stale_syncs=3")
    trainer.sync()
    scene.prometheus.wait_for(f'weight_sync_stale_syncs{{run="{run}"}} == 0', 60)
    scene.prometheus.wait_for(f'weight_sync_attempts_total{{run="{run}",result="success"}} == 1', 60)
    server.inject(Fault.RATE_LIMITED)
    trainer.sync()


def _killed(remedies: str = "") -> Callable[[Scene, str], None]:
    """The trainer is gone while its request is out."""

    def steps(scene: Scene, run: str) -> None:
        server = scene.server(Fault.NEVER_ANSWERS)
        trainer = scene.trainer(run, server.url, remedies=remedies)
        trainer.sync()
        wait_until(lambda: server.updates, "the request is out", 60)
        trainer.process.send_signal(signal.SIGKILL)

    return steps


def _peer(scene: Scene, run: str) -> None:
    """Without torchrun, which ends rank 0 as well as soon as rank 1 is gone."""
    server = scene.stack.enter_context(Answers(SUCCESS))
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    arguments = (server.url, "1", str(scene.folder / run), "1", "barrier")
    ranks = [
        scene.start(run, "-m", "tests.harness.ranks", *arguments, log=f"{run}-{rank}.log", RANK=str(rank), **place)
        for rank in range(2)
    ]
    wait_until(lambda: all(rank.process.poll() is not None for rank in ranks), "both ranks are gone", 90)


_STEPS: dict[str, Callable[[Scene, str], None]] = {
    "peer": _peer,
    "disk_full": _disk_full,
    "disk_full_goes_on": _disk_full_goes_on,
    "out_of_memory": _weights("no_memory"),
    "checkpoint_write": _read_only,
    "proxy_intercepted": _proxy,
    "unauthorized": _unauthorized,
    "unreachable": _unreachable("ends"),
    "unreachable_goes_on": _unreachable("goes_on"),
    "server_died": _dies("ends", "whole", Fault.DIES_WITHOUT_ANSWER),
    "server_died_goes_on": _dies("goes_on", "whole", Fault.DIES_WITHOUT_ANSWER),
    "server_died_comes_back": _comes_back,
    "timeout": _fault(Fault.SLOW, timeout=0.3),
    "checkpoint_invalid": _dies("ends", "cut"),
    "checkpoint_invalid_goes_on": _dies("goes_on", "cut"),
    "path_not_visible": _fault(Fault.PATH_NOT_VISIBLE),
    "server_busy": _fault(Fault.BUSY_WEIGHTS_APPLIED),
    "server_busy_continues_stale": _continues_stale,
    "protocol": _fault(Fault.NOT_FOUND),
    "server_error": _fault(Fault.SERVICE_UNAVAILABLE),
    "server_error_stays_paused": _fault_and_goes_on(Fault.STAYS_PAUSED),
    "not_applied": _fault_and_goes_on(Fault.NOT_APPLIED),
    "trainer_lost": _killed(),
    "trainer_lost_while_paused": _killed("pause=abort"),
    "unknown": _weights("bug"),
}
