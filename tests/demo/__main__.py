"""usage: python -m tests.demo [--sglang fake|real] [--keep 0|1]"""

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import rich
from rich.table import Table

from sglang_telemetry.events import SyncRecord
from sglang_telemetry.journal.reader import SegmentReader
from tests.demo.servers import FakeServer, RealServer, Server
from tests.harness.alertmanager import Alertmanager
from tests.harness.assets import RULES
from tests.harness.processes import Child, free_port, wait_until
from tests.harness.prometheus import Prometheus
from tests.harness.webhook import Page, Webhook

ROOT = Path(__file__).parents[2]
RUN = "demo"
PHASES = ("state_dict", "save", "request", "broadcast", "barrier")
_OURS = re.compile(
    r"^(\d\d:\d\d:\d\d (INFO|WARNING|ERROR) | {9}\S|sglang-telemetry run: |rank \d|weight_sync \d|trace |[├└│] ?| {4}└)"
)


class Training:
    """``sglang-telemetry run -- torchrun ...``; our lines of its output are shown as they come.

    Args:
        folder: For journals, checkpoint and orders.
        server: Where it syncs to.
        listen: Where its exporter serves.
    """

    def __init__(self, folder: Path, server: Server, listen: str) -> None:
        self.journals, self._orders = folder / "journals", folder / "orders"
        self._orders.mkdir()
        self._step = 0
        ours = ("-m", "sglang_telemetry", "run", "--run", RUN, "--dir", str(self.journals))
        theirs = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "tests.demo.train")
        trainer = (*theirs, server.url, str(folder / "checkpoint"), str(self._orders), server.start_model)
        options = ("--listen", listen, "--linger", "15s")
        self.process = subprocess.Popen(
            [sys.executable, *ours, *options, "--", sys.executable, *trainer],
            env=os.environ
            | {"SGLANG_TELEMETRY_LOG_FORMAT": "console", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        self._log = (folder / "training.log").open("w")
        threading.Thread(target=self._show, daemon=True).start()

    def step(self, what: str = "train") -> None:
        """Let the trainer do a step."""
        self._step += 1
        path = self._orders / f"step-{self._step}"
        path.with_suffix(".new").write_text(what)
        path.with_suffix(".new").rename(path)

    def pid_of(self, rank: int) -> int:
        """The pid of a rank, from the name of its journal."""
        [journal] = self.journals.glob(f"{RUN}-r{rank}-*.jsonl")
        return int(journal.name.split("-")[2])

    def close(self) -> None:
        """End what still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()
        self._log.close()

    def _show(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if not self._log.closed:
                self._log.write(line)
            if _OURS.match(line):
                print(line, end="", flush=True)


class Story:
    """The acts, and what must have come of them."""

    def __init__(
        self, folder: Path, server: Server, prometheus: Prometheus, webhook: Webhook, training: Training
    ) -> None:
        self._server, self._prometheus, self._webhook, self.training = server, prometheus, webhook, training
        self._syncs = 0
        self.expected: list[str] = []

    def play(self) -> None:
        """From the first good sync to the killed trainer."""
        act("good syncs")
        for _ in range(4):
            self._good()
        act("the server is busy: it answers 400, and the weights are new all the same")
        with self._server.busy():
            self.training.step()
            self._paged("server_busy")
        act("good syncs: the page is taken back")
        for _ in range(3):
            self._good()
        act("a checkpoint of another shape kills the server")
        self.training.step("wrong_shape")
        self._paged("server_died")
        act("the server is back, with its start weights, until the next good sync")
        self._server.restart()
        self._good()
        act("the server hangs, and rank 0 is killed with SIGKILL in the middle of the sync")
        self._server.hang()
        self.training.step()
        self._prometheus.wait_for(f'weight_sync_active_phase{{run="{RUN}",rank="0",phase="request"}} == 1')
        show_hang(self._prometheus)
        os.kill(self.training.pid_of(0), signal.SIGKILL)
        self._paged("trainer_lost")

    def pages(self) -> list[Page]:
        """What reached the phone."""
        return self._webhook.of("firing")

    def _good(self) -> None:
        self._syncs += 1
        self.training.step()
        self._prometheus.wait_for(
            f'weight_sync_attempts_total{{run="{RUN}",result="success"}} == {self._syncs}', timeout=60
        )

    def _paged(self, cause: str) -> None:
        self.expected.append(cause)
        wait_until(lambda: self._webhook.of("firing", cause=cause), f"the page of {cause}", timeout=60)


def act(title: str) -> None:
    """Say what comes now."""
    rich.print(f"\n[bold]== {title}[/bold]", flush=True)


def show_hang(prometheus: Prometheus) -> None:
    """Who is where, as Prometheus sees it while it hangs."""
    for one in prometheus.query(f'weight_sync_active_phase{{run="{RUN}"}}'):
        print(f"         while it hangs: rank {one['metric']['rank']} is in {one['metric']['phase']}")


def phase_seconds(journals: Path) -> dict[str, list[float]]:
    """Seconds by phase of all syncs of the coordinator, exactly: the histogram's buckets begin at 50 ms."""
    found: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for path in journals.glob(f"{RUN}-r0-*.jsonl"):
        reader = SegmentReader(path)
        for event in reader.events():
            if isinstance(event, SyncRecord):
                for phase, seconds in event.phase_seconds().items():
                    found.get(phase, []).append(seconds)
        reader.close()
    return found


def report(prometheus: Prometheus, story: Story) -> tuple[int, dict[str, int]]:
    """Print the tables; the number of syncs, and of failures by cause. The exporter may be gone: what was seen last."""
    syncs = int(prometheus.value(f'sum(last_over_time(weight_sync_attempts_total{{run="{RUN}"}}[10m]))') or 0)
    failures = {
        one["metric"]["cause"]: int(float(one["value"][1]))
        for one in prometheus.query(
            f'sum by (cause) (last_over_time(weight_sync_failures_total{{run="{RUN}"}}[10m])) > 0'
        )
    }
    table = Table("phase", "p50", "p95", title=f"\n{syncs} syncs, {sum(failures.values())} failed")
    for phase, seconds in phase_seconds(story.training.journals).items():
        median, *_, high = (statistics.quantiles(seconds, n=20, method="inclusive")[n] for n in (9, 18))
        table.add_row(phase, f"{median * 1000:.1f} ms", f"{high * 1000:.1f} ms")
    rich.print(table)
    for cause, count in failures.items():
        print(f"  {cause:<20} {count}")
    for page in story.pages():
        stamp = f'weight_sync_last_failure_timestamp_seconds{{run="{RUN}",cause="{page.labels["cause"]}"}}'
        failed_at = prometheus.value(f"max_over_time({stamp}[15m])") or float("nan")
        title = f"{page.labels['severity'].upper()} {page.labels['run']}: {page.annotations['summary']}"
        rich.print(f"\n[bold red]{title} ({page.labels['cause']})[/bold red]")
        print(f"  {page.annotations['description']}\n  First: {page.annotations['first']}")
        print(f"  Runbook: alerts/{page.annotations['runbook_url']}\n  Trace: {page.annotations['trace']}")
        print(f"  {page.at - failed_at:.1f} s from failure to page")
    return syncs, failures


def main() -> int:
    """Play the story."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sglang", choices=("fake", "real"), default="fake")
    parser.add_argument("--keep", choices=("0", "1"), default="0")
    arguments = parser.parse_args()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sglang-telemetry-demo-")))
        print("demo: starting a server, Prometheus, Alertmanager, and a trainer on two ranks", flush=True)
        server: Server = FakeServer(folder) if arguments.sglang == "fake" else RealServer(folder)
        stack.callback(server.close)
        listen = f"127.0.0.1:{free_port()}"
        webhook = stack.enter_context(Webhook())
        alertmanager = stack.enter_context(Alertmanager(folder / "alertmanager", page=webhook.url))
        prometheus = stack.enter_context(
            Prometheus(folder / "prometheus", {RUN: listen}, rule_files=RULES, alertmanager=alertmanager.address)
        )
        if arguments.keep == "1":  # an exporter that stays; `run` finds it and uses it
            (folder / "journals").mkdir()
            serve = ("exporter", "--dir", str(folder / "journals"), "--listen", listen)
            stack.callback(Child([sys.executable, "-m", "sglang_telemetry", *serve], folder / "exporter.log").close)
            prometheus.wait_for("up == 1", timeout=60)
        training = Training(folder, server, listen)
        stack.callback(training.close)
        prometheus.wait_for("up == 1", timeout=60)
        story = Story(folder, server, prometheus, webhook, training)
        story.play()
        syncs, failures = report(prometheus, story)
        paged = [page.labels["cause"] for page in story.pages()]
        good = failures == dict.fromkeys(story.expected, 1) and sorted(paged) == sorted(story.expected)
        if arguments.keep == "1":
            print(f"\nexporter http://{listen}/  prometheus {prometheus.url}/  alertmanager {alertmanager.url}/")
            print("Ctrl-C ends it all", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
        else:
            training.process.wait(60)
    word = "ok" if good else f"FAILED (expected {','.join(story.expected)} once each, paged {','.join(paged)})"
    print(
        f"\ndemo {word}: syncs={syncs} failures={sum(failures.values())} causes={','.join(failures)} "
        f"pages={len(paged)} seconds={time.monotonic() - began:.0f}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
