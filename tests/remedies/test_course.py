"""What is sent around an update, for how long it may take, and that a pause ends with it; by a clock of the test."""

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglang_telemetry import Applied, FailureCause, Remedies
from sglang_telemetry.checkpoint.validate import Verdict
from sglang_telemetry.names import Action, Outcome
from sglang_telemetry.remedies.client import Client
from sglang_telemetry.remedies.course import Course, Means, Publishing
from sglang_telemetry.remedies.host_lock import HostLock
from sglang_telemetry.remedies.retry import Failed
from sglang_telemetry.remedies.timeout import AutoTimeout

URL = "http://10.0.0.7:30000/update_weights_from_disk"
PAUSE, UPDATE, FLUSH, RELEASE = "pause_generation", "update_weights_from_disk", "flush_cache", "continue_generation"
HANGS = dict.fromkeys((PAUSE, FLUSH, RELEASE, "ready"), 1e6)
BUSY = Failed(cause=FailureCause.SERVER_BUSY, applied=Applied.NO, status=429)
REFUSED = Failed(cause=FailureCause.OUT_OF_MEMORY, applied=Applied.NO, status=400)
NOT_VISIBLE = Failed(cause=FailureCause.PATH_NOT_VISIBLE, applied=Applied.NO, status=400)
UNREACHABLE = Failed(cause=FailureCause.UNREACHABLE, applied=Applied.NO, status=None)


@dataclass
class Scene:
    """One update to a server that is simulated, as is time.

    Args:
        options: The remedies.
        takes: Seconds that each route takes, 0 unless given; longer than its time-out, and it is cut off.
        answers: What each route answers, one after the other: a status, or an exception; 200 after the last.
        failures: How each update that is sent failed.
        ranks: The time-out of the collectives in which other ranks wait.
        verdict: What a look at the checkpoint finds, or raises.
        publishing: The engine's folder.
    """

    options: Remedies
    takes: Mapping[str, float] = field(default_factory=dict)
    answers: Mapping[str, list[int | BaseException]] = field(default_factory=dict)
    failures: list[Failed | None] = field(default_factory=list)
    ranks: float | None = None
    verdict: Verdict | Exception = field(default_factory=Verdict)
    publishing: Publishing | None = None
    now: float = 0.0
    gone: bool = False
    """Nobody answers a question."""
    asked: list[tuple[str, float | None]] = field(default_factory=list)
    """Routes and the time-outs of the requests."""
    told: list[str] = field(default_factory=list)
    broken: list[BaseException] = field(default_factory=list)
    """Errors of ours."""
    not_sent: list[tuple[FailureCause, str]] = field(default_factory=list)

    def run(self, during: Callable[[], Any] = lambda: None, **named: Any) -> Any:
        """The update.

        Args:
            during: Called while the server has the update.
            named: More arguments of the course.
        """
        means = Means(
            options=self.options,
            timeout=AutoTimeout(self.options),
            lock=lambda server: HostLock(Path("/proc/nowhere"), server),
            publishing=self.publishing,
            verdict=self.look,
            failed=self.broken.append,
            collective_seconds=self.ranks,
            sleep=self.sleep,
        )

        def send(arguments: dict[str, Any]) -> httpx.Response:
            answer = self.post(URL, **arguments)
            during()
            return answer

        client = Client(URL, {}, post=self.post, get=self.get, kind=httpx)
        return Course(means, self, client, server="10.0.0.7:30000", disk=True, send=send, **named).run({"timeout": 900})

    def post(self, url: str, *, timeout: float | None = None, json: object = None) -> httpx.Response:
        """As a client does."""
        route = url.rpartition("/")[2].partition("?")[0]
        self.asked.append((url.rpartition("/")[2], timeout))
        seconds = self.takes.get(route, 0.0)
        if timeout is not None and seconds > timeout:
            self.now += timeout
            raise httpx.ReadTimeout("timed out")
        self.now += seconds
        left = self.answers.get(route)
        answer = left.pop(0) if left else 200
        if isinstance(answer, BaseException):
            raise answer
        return httpx.Response(answer, text="")

    def get(self, url: str, *, timeout: float) -> httpx.Response:
        """As a client does; it is not among what was asked."""
        seconds = self.takes.get(url.rpartition("/")[2], 0.0)
        self.now += min(seconds, timeout)
        if seconds > timeout or self.gone:
            raise httpx.ConnectError("nobody answers")
        return httpx.Response(200)

    def look(self, arguments: Mapping[str, Any]) -> tuple[Verdict, int | None]:
        """At the checkpoint."""
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict, 1

    def sleep(self, seconds: float) -> None:
        """By the clock of the test."""
        self.now += seconds

    def offset_ns(self) -> int:
        """By the clock of the test."""
        return round(self.now * 1e9)

    def remedied(
        self, action: Action, outcome: Outcome, began_ns: int, detail: str = "", *, server: str | None = None
    ) -> None:
        """Keep it, with the reason for what was left out."""
        reason = outcome is Outcome.SKIPPED or detail.startswith("left out")
        self.told.append(f"{action} {outcome}" + f": {detail}" * reason)

    def refused(self, url: str, cause: FailureCause, text: str) -> None:
        """Keep it."""
        self.not_sent.append((cause, text))

    def waits(self) -> None:
        """Nothing."""

    def failure(self, url: str) -> Failed | None:
        """The next one."""
        return self.failures.pop(0) if self.failures else None

    @property
    def routes(self) -> list[str]:
        """What was asked for, without queries."""
        return [route.partition("?")[0] for route, _ in self.asked]


def pausing(seconds: float, **more: Any) -> Remedies:
    """With a pause, and so many seconds."""
    return Remedies(pause="abort", deadline_seconds=seconds, **more)


@pytest.mark.parametrize(("deadline", "bound"), [(120.0, 60.0), (8.0, 8.0), (1.0, 1.0)])
def test_a_pause_takes_no_longer_than_what_is_left(deadline: float, bound: float) -> None:
    """And never longer than a minute."""
    scene = Scene(pausing(deadline))
    scene.run()
    assert scene.asked[0] == (PAUSE, bound)
    assert scene.told == ["pause done", "release done"]


def test_without_time_nothing_is_paused() -> None:
    """The update is sent as it would be without us, and there is nothing to release."""
    scene = Scene(pausing(0.9))
    assert scene.run().status_code == 200
    assert scene.routes == [UPDATE]
    assert scene.told == ["pause skipped: no time is left for it"]


@pytest.mark.parametrize("deadline", [2.0, 8.0, 30.0, 120.0])
def test_a_server_that_hangs_holds_a_sync_for_the_deadline_and_five_seconds(deadline: float) -> None:
    """With a pause, a flush and a release that are never answered, and an update that takes its time besides."""
    scene = Scene(pausing(deadline), takes=HANGS | {UPDATE: 300.0}, failures=[REFUSED])
    scene.run()
    assert scene.now - 300.0 <= deadline + 5.0
    assert scene.asked[-1][0] == RELEASE


def test_it_holds_the_other_ranks_no_longer_either() -> None:
    """Half of the time in which they wait, and the release."""
    scene = Scene(pausing(600), takes=HANGS, failures=[REFUSED], ranks=40.0)
    scene.run()
    assert scene.asked == [(PAUSE, 20.0), (UPDATE, 900), (RELEASE, 5.0)]
    assert scene.told == ["pause failed", "flush skipped: no time is left for it", "release failed"]


@pytest.mark.parametrize(("deadline", "bound"), [(120.0, 60.0), (30.0, 26.0), (6.0, 5.0)])
def test_a_release_is_always_tried(deadline: float, bound: float) -> None:
    """With what is left, at least 5 s and at most a minute."""
    scene = Scene(pausing(deadline), takes={PAUSE: 4.0})
    scene.run()
    assert scene.asked[-1] == (RELEASE, bound)


def test_a_flush_after_the_update_takes_what_is_left() -> None:
    """Pause and flush are of one account."""
    scene = Scene(pausing(10.0), takes={PAUSE: 3.0, FLUSH: 2.5}, failures=[REFUSED])
    scene.run()
    assert scene.asked == [(PAUSE, 10.0), (UPDATE, 900), (FLUSH, 7.0), (RELEASE, 5.0)]
    assert scene.told == ["pause done", "flush done", "release done"]


def test_the_flush_before_a_retry_takes_what_is_left() -> None:
    """The server's own waiting, and its answer."""
    scene = Scene(pausing(10.0, retry=True), takes={PAUSE: 3.0, FLUSH: 4.0}, failures=[BUSY])
    scene.run()
    assert scene.asked[2:4] == [("flush_cache?timeout=6", 7.0), (UPDATE, 3.0)]
    assert scene.told == ["pause done", "flush done", "retry done", "release done"]


def test_what_sending_again_takes_is_spent() -> None:
    """What follows it has the rest."""
    scene = Scene(pausing(20.0, retry=True), takes={UPDATE: 9.0}, failures=[BUSY, REFUSED])
    scene.run()
    assert scene.asked[3:] == [(UPDATE, 20.0), (FLUSH, 11.0), (RELEASE, 11.0)]


@pytest.mark.parametrize(("takes", "again"), [(3.0, True), (9.5, False)])
def test_a_pause_after_a_restart_takes_what_is_left(takes: float, again: bool) -> None:
    """When nothing is left after it, the update is not sent again."""
    scene = Scene(pausing(10.0, retry=True), failures=[UNREACHABLE])

    def restarted() -> None:
        scene.takes = {PAUSE: takes}

    scene.run(restarted)
    assert scene.asked[2] == (PAUSE, 10.0)
    assert scene.asked[3:] == ([(UPDATE, 7.0), (RELEASE, 7.0)] if again else [(RELEASE, 5.0)])


@pytest.mark.parametrize(
    ("takes", "says"),
    [(0.0, "release skipped: the server is gone: it comes back without a pause"), (1e6, "release failed")],
)
def test_a_server_that_hangs_is_not_gone(takes: float, says: str) -> None:
    """It may come back paused; one that refuses to be connected to has ended, and its pause with it."""
    refused: BaseException = httpx.ConnectError("refused")
    scene = Scene(pausing(60), takes={RELEASE: takes}, answers={RELEASE: [refused]}, gone=True)
    scene.run()
    assert scene.told[-1] == says


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_gateway_that_gave_up_may_have_paused_it(status: int) -> None:
    """The server has the request, whatever is said in its name: it is released."""
    scene = Scene(pausing(60), answers={PAUSE: [status]})
    scene.run()
    assert scene.told == ["pause failed", "release done"]


@pytest.mark.parametrize("status", [400, 401, 404])
def test_what_was_refused_is_not_released(status: int) -> None:
    """It is not paused."""
    scene = Scene(pausing(60), answers={PAUSE: [status]})
    scene.run()
    assert scene.told == ["pause failed"]
    assert scene.routes == [PAUSE, UPDATE]


def test_a_second_pause_that_is_refused_does_not_undo_the_first() -> None:
    """The server may be the one of before, if it was only not to be reached."""
    scene = Scene(pausing(60, retry=True), answers={PAUSE: [200, 403]}, failures=[UNREACHABLE])
    scene.run()
    assert scene.told == ["pause done", "wait done", "pause failed", "retry done", "release done"]


def test_ctrl_c_during_a_pause_leaves_nothing_paused() -> None:
    """The request may have come through: it is released, and no update is sent."""
    scene = Scene(pausing(60), answers={PAUSE: [KeyboardInterrupt()]})
    with pytest.raises(KeyboardInterrupt):
        scene.run()
    assert scene.routes == [PAUSE, RELEASE]
    assert scene.told == ["release done"]


def test_ctrl_c_during_a_second_pause_leaves_nothing_paused() -> None:
    """After a restart."""
    scene = Scene(pausing(60, retry=True), answers={PAUSE: [403, KeyboardInterrupt()]}, failures=[UNREACHABLE])
    with pytest.raises(KeyboardInterrupt):
        scene.run()
    assert scene.routes == [PAUSE, UPDATE, PAUSE, RELEASE]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(1)])
def test_ctrl_c_during_a_release_does_not_end_it(stop: BaseException) -> None:
    """It is tried once more, for a short time, and then the trainer is stopped."""
    scene = Scene(pausing(60), answers={RELEASE: [stop]})
    with pytest.raises(type(stop)):
        scene.run()
    assert scene.asked[2:] == [(RELEASE, 60.0), (RELEASE, 5.0)]
    assert scene.told == ["pause done", "release done"]


def test_a_second_ctrl_c_does() -> None:
    """Whoever asks twice does not want to wait."""
    scene = Scene(pausing(60), answers={RELEASE: [KeyboardInterrupt(), KeyboardInterrupt()]})
    with pytest.raises(KeyboardInterrupt):
        scene.run()
    assert scene.routes[2:] == [RELEASE, RELEASE]


@pytest.mark.parametrize("failure", [None, REFUSED])
def test_a_forked_child_releases_nothing(failure: Failed | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause is its parent's, whose update goes on; nor does it flush."""
    scene = Scene(pausing(60), failures=[failure])
    scene.run(lambda: monkeypatch.setattr(os, "getpid", lambda: -1))
    assert scene.routes == [PAUSE, UPDATE]
    assert scene.told == ["pause done"]


def test_a_wait_ends_before_the_ranks_give_up() -> None:
    """Half of the time in which they wait, and not the deadline: then the run fails as it would without us."""
    scene = Scene(Remedies(retry=True, deadline_seconds=600), failures=[UNREACHABLE], ranks=40.0, gone=True)
    scene.run()
    assert scene.told == ["wait failed"]
    assert (scene.routes, round(scene.now)) == ([UPDATE], 19)


def test_a_wait_for_the_servers_host_is_half_of_what_is_left() -> None:
    """And never longer than a network file system keeps an old state."""
    waited = []
    for deadline in (20.0, 600.0):
        scene = Scene(Remedies(retry=True, deadline_seconds=deadline), failures=[NOT_VISIBLE])
        scene.run()
        assert scene.told == ["wait done", "retry done"]
        waited.append(scene.now)
    assert waited == [10.0, 35.0]


BROKEN = ValueError("embedded null byte")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Remedies(validate=True, retry=True), "validate failed"),
        (Remedies(retry=True, timeout="auto"), "retry failed"),
        (Remedies(timeout="auto"), "timeout failed"),
    ],
)
def test_a_look_of_ours_that_breaks_is_told(options: Remedies, told: str) -> None:
    """The update is sent without it."""
    scene = Scene(options, verdict=BROKEN)
    assert scene.run().status_code == 200
    assert scene.told[0] == f"{told}: left out: ValueError: embedded null byte"
    assert (scene.routes, scene.broken) == ([UPDATE], [BROKEN])


def test_a_retry_of_ours_that_breaks_is_told() -> None:
    """The engine gets the answer that it would have got."""
    scene = Scene(Remedies(retry=True), answers={UPDATE: [400]}, failures=[NOT_VISIBLE])
    scene.sleep = lambda seconds: (_ for _ in ()).throw(BROKEN)  # type: ignore[method-assign]
    assert scene.run().status_code == 400
    assert scene.told == ["retry failed: left out: ValueError: embedded null byte"]
    assert (scene.routes, scene.broken) == ([UPDATE], [BROKEN])


@pytest.mark.parametrize(
    ("error", "cause", "broken"),
    [
        (BROKEN, FailureCause.CHECKPOINT_WRITE, [BROKEN]),
        (OSError(errno.ENOSPC, "No space left on device"), FailureCause.DISK_FULL, []),
    ],
)
def test_what_cannot_be_published_is_not_sent(error: Exception, cause: FailureCause, broken: list[Exception]) -> None:
    """Whatever the reason: the server would load what was there before."""

    class Folder:
        def publish(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
            raise error

        def confirmed(self) -> None:
            pytest.fail("nothing was sent")

        def unwanted(self) -> None:
            pytest.fail("it is the folder's own to know")

    scene = Scene(Remedies(publish_atomically=True), publishing=Folder())
    assert scene.run().status_code == 400
    assert (scene.told, scene.routes, scene.broken) == (["publish refused"], [], broken)
    assert [one for one, _ in scene.not_sent] == [cause]


def test_a_lock_that_cannot_be_had_is_no_context_of_the_engines_error() -> None:
    """Its cause is read from there: a full disk of ours is none of the engine's."""
    scene = Scene(Remedies(serialize=True))

    def fails() -> None:
        raise httpx.ReadTimeout("timed out")

    with pytest.raises(httpx.ReadTimeout) as raised:
        scene.run(fails)
    assert scene.told[0].startswith("serialize failed")
    assert raised.value.__context__ is None
