"""Proxy variables: whether they apply, as requests decides, and that no password of theirs is shown."""

from collections.abc import Mapping

import pytest
import requests

from sglang_telemetry.preflight.findings import Level
from sglang_telemetry.preflight.proxy import proxy

IP, NAME = "http://10.0.0.7:30000", "http://sglang.rl.svc:30000"
P = {"HTTP_PROXY": "http://user:s3cr3t@proxy.corp:3128"}
ADD = 'export NO_PROXY="10.0.0.7"'

CASES: list[tuple[str, dict[str, str], Level, str]] = [
    (IP, {}, Level.OK, ""),
    (IP, {"HTTPS_PROXY": "http://proxy:3128"}, Level.OK, ""),
    (IP, P, Level.WARN, ADD),
    (IP, {"http_proxy": "proxy:3128"}, Level.WARN, ADD),
    (IP, {"ALL_PROXY": "socks5h://proxy"}, Level.WARN, ADD),
    (IP, P | {"http_proxy": ""}, Level.OK, ""),
    (IP, P | {"NO_PROXY": "10.0.0.7"}, Level.OK, ""),
    (IP, P | {"NO_PROXY": " localhost, 10.0.0.7 "}, Level.OK, ""),
    (IP, P | {"no_proxy": "*"}, Level.OK, ""),
    (IP, P | {"no_proxy": "localhost"}, Level.WARN, 'export no_proxy="$no_proxy,10.0.0.7"'),
    (IP, P | {"NO_PROXY": "10.0.0.7:30000"}, Level.WARN, 'export NO_PROXY="$NO_PROXY,10.0.0.7"'),
    (NAME, P | {"NO_PROXY": "sglang.rl.svc:30000"}, Level.OK, ""),
    (NAME, P | {"NO_PROXY": ".svc"}, Level.OK, ""),
    (NAME, P | {"NO_PROXY": "svc.cluster.local"}, Level.WARN, 'export NO_PROXY="$NO_PROXY,sglang.rl.svc"'),
    ("http://127.0.0.1:30000", P, Level.WARN, 'export NO_PROXY="127.0.0.1"'),
    ("http://localhost:30000", P | {"NO_PROXY": "127.0.0.1"}, Level.WARN, 'export NO_PROXY="$NO_PROXY,localhost"'),
]


@pytest.mark.parametrize(("url", "environ", "level", "fix"), CASES)
def test_proxy(url: str, environ: dict[str, str], level: Level, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The literal entry to add; and requests decides the same."""
    found = proxy(url, environ)
    assert (found.level, found.fix) == (level, fix)
    assert "s3cr3t" not in repr(found)
    assert bool(_of_requests(url, environ, monkeypatch)) == (level is not Level.OK)


def test_what_is_shown_of_a_proxy() -> None:
    """The variable, host and port."""
    assert proxy(IP, P).reason == (
        "HTTP_PROXY applies to it: the trainer's requests go to proxy.corp:3128, whose answers are not SGLang's"
    )


def test_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only requests understands it."""
    environ = P | {"NO_PROXY": "localhost,10.0.0.0/8"}
    found = proxy(IP, environ)
    assert (found.level, found.fix) == (Level.WARN, 'export NO_PROXY="$NO_PROXY,10.0.0.7"')
    assert found.reason.startswith("only requests understands 10.0.0.0/8 in NO_PROXY")
    assert not _of_requests(IP, environ, monkeypatch)
    assert proxy(IP, P | {"NO_PROXY": "192.168.0.0/16,nonsense/9"}).reason.startswith("HTTP_PROXY applies to it")


@pytest.mark.parametrize(
    "value", ["http:/s3cr3t:3128", "http://", "http://proxy:s3cr3t", "http://a b:1", "s3cr3t://proxy:1", "http://[::1"]
)
def test_malformed(value: str) -> None:
    """No request would be sent; the value is not shown, since it may hold a password."""
    found = proxy(IP, {"HTTP_PROXY": value})
    assert (found.level, found.fix) == (Level.FAIL, "write HTTP_PROXY like http://proxy:3128, or unset it")
    assert "s3cr3t" not in repr(found)
    assert proxy(IP, {"HTTP_PROXY": value, "NO_PROXY": "10.0.0.7"}).level is Level.OK


def _of_requests(url: str, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The proxy that requests would take."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    proxies = requests.utils.get_environ_proxies(url)
    return requests.utils.select_proxy(url, proxies)
