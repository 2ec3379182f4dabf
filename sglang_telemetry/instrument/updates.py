"""The updates of one sync, by the server that they were for, and which of them decides how it ended."""

import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.classify import Evidence, Recorded, another_is_at_work, classify
from sglang_telemetry.events import Checkpoint
from sglang_telemetry.instrument.http import host_of
from sglang_telemetry.instrument.probe import Probe
from sglang_telemetry.names import Applied, Phase
from sglang_telemetry.remedies.retry import Failed
from sglang_telemetry.text import clean_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a remedy did not let an update be sent, to which server, and the phase in which that was."""

    server: str | None
    cause: FailureCause
    phase: Phase
    text: str


@dataclass(slots=True, kw_only=True)
class _Server:
    """What came of the last update to it: the number of its request, and whether one was refused since."""

    index: int | None = None
    recorded: Recorded | None = None
    refusal: Refusal | None = None

    @property
    def failed(self) -> bool:
        return self.refusal is not None or (self.recorded is not None and self.recorded.failed)


class Updates:
    """Of each server only the last one counts."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._probe: Probe | None = None

    def __len__(self) -> int:
        return len(self._servers)

    @property
    def accepting(self) -> bool | None:
        """Did the server that gave no answer accept a connection right after; None when that is not known yet."""
        return self._probe.accepting if self._probe is not None else None

    def add(self, index: int, recorded: Recorded, server: str | None) -> None:
        """One was answered, or will not be.

        Args:
            index: Its number among the requests of the sync.
            recorded: What came of it.
            server: Where it went, ``host:port``.
        """
        last = self._of(recorded.exchange.url)
        last.index, last.recorded, last.refusal = index, recorded, None
        self._probe = Probe(server) if recorded.error is not None and server is not None else self._probe

    def refuse(self, url: str, refusal: Refusal) -> None:
        """One was not sent."""
        self._of(clean_url(url)).refusal = refusal

    def decisive(self) -> tuple[int | None, Recorded | None]:
        """The one that decides: of several servers, the first that did not take the weights when asked last.

        Where all of them did, the one that was asked first; none where it is one that was not sent.
        """
        last = self._decisive
        return (None, None) if last is None or last.refusal is not None else (last.index, last.recorded)

    @property
    def refusal(self) -> Refusal | None:
        """Why the one that decides was not sent."""
        last = self._decisive
        return last.refusal if last is not None else None

    @property
    def refused(self) -> Applied:
        """Has the server that an update was refused to taken the weights? It may have been sent them before."""
        last = self._decisive
        return Applied.NO if last is None or last.recorded is None else _taken(last.recorded)

    @property
    def _decisive(self) -> _Server | None:
        servers = list(self._servers.values())
        return next((one for one in servers if one.failed), servers[0] if servers else None)

    def _of(self, url: str) -> _Server:
        return self._servers.setdefault(url, _Server())

    def failure(self, url: str, look: Callable[[], Checkpoint | None]) -> Failed | None:
        """How the last one to a URL failed, as far as it is known now; None when the server took it.

        Args:
            url: As the engine wrote it.
            look: Looks at the checkpoint.
        """
        server = self._servers.get(clean_url(url))
        recorded = server.recorded if server is not None else None
        if recorded is None or not recorded.failed:
            return None
        evidence = Evidence(
            coordinator=True,
            recorded=recorded,
            proxied=proxied(recorded),
            checkpoint=look(),
            accepting=self.accepting,
        )
        cause, applied = classify(evidence)
        exchange = recorded.exchange
        another = another_is_at_work(exchange.response_text)
        return Failed(cause=cause, applied=applied, status=exchange.status_code, another=another)

    def taken(self) -> Iterator[tuple[int, Applied]]:
        """Did each of several servers take the weights, by the number of its request?"""
        for server in self._servers.values():
            if server.index is not None and server.recorded is not None:
                yield server.index, _taken(server.recorded)

    def clear(self) -> None:
        """Let go of exceptions, which hold their frames."""
        self._servers.clear()


def proxied(recorded: Recorded | None) -> bool:
    """Does a proxy variable apply to the URL of this exchange?"""
    host = host_of(recorded.exchange.url) if recorded is not None else None
    if host is None:
        return False
    proxies = urllib.request.getproxies_environment()
    return bool(proxies.keys() - {"no"}) and not urllib.request.proxy_bypass_environment(host, proxies)  # type: ignore[attr-defined]


def _taken(recorded: Recorded) -> Applied:
    if not recorded.failed:
        return Applied.YES
    try:
        return classify(Evidence(coordinator=True, recorded=recorded))[1]
    except Exception:  # an exception whose text raises, say
        return Applied.UNKNOWN
