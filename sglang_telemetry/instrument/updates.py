"""The updates that one sync has sent, by the server that they went to, and which of them decides how it ended."""

import urllib.request
from collections.abc import Callable, Iterator

from sglang_telemetry.classify import Evidence, Recorded, another_is_at_work, classify
from sglang_telemetry.events import Checkpoint
from sglang_telemetry.instrument.http import host_of
from sglang_telemetry.instrument.probe import Probe
from sglang_telemetry.names import Applied
from sglang_telemetry.remedies.retry import Failed
from sglang_telemetry.text import clean_url


class Updates:
    """Of each server only the last one counts."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, Recorded]] = {}
        self._probe: Probe | None = None

    def __len__(self) -> int:
        return len(self._last)

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
        self._last[recorded.exchange.url] = (index, recorded)
        self._probe = Probe(server) if recorded.error is not None and server is not None else self._probe

    def decisive(self) -> tuple[int | None, Recorded | None]:
        """The one that decides: of several servers, the first that did not take the weights when asked last.

        Where all of them did, the one that was asked first.
        """
        chosen: tuple[int | None, Recorded | None] = (None, None)
        for index, recorded in self._last.values():
            if recorded.failed:
                return index, recorded
            chosen = chosen if chosen[1] is not None else (index, recorded)
        return chosen

    def failure(self, url: str, look: Callable[[], Checkpoint | None]) -> Failed | None:
        """How the last one to a URL failed, as far as it is known now; None when the server took it.

        Args:
            url: As the engine wrote it.
            look: Looks at the checkpoint.
        """
        recorded = self._last.get(clean_url(url), (0, None))[1]
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
        for index, recorded in self._last.values():
            yield index, _taken(recorded)

    def clear(self) -> None:
        """Let go of exceptions, which hold their frames."""
        self._last.clear()


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
