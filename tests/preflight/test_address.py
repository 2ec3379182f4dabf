"""Addresses, servers that do not answer, and certificates."""

from pathlib import Path

import pytest

from sglang_telemetry.preflight.address import answers, certificate_fault, parsed
from sglang_telemetry.preflight.findings import Check, Finding, Level
from sglang_telemetry.server_truth.examine import examine
from sglang_telemetry.testing import FakeSGLang
from tests.harness.processes import free_port
from tests.server_truth.sites import make_certificate, site, talker


@pytest.mark.parametrize(
    ("text", "reason", "fix"),
    [
        ("10.0.0.7:30000", "10.0.0.7:30000 has no scheme", "write http://10.0.0.7:30000"),
        ("http://u:pw@h:1", "the address has a user or a password in it", "write http://10.0.0.7:30000"),
        ("", "the address is empty", "write http://10.0.0.7:30000"),
        ("http://h:1/model_info", "/model_info is a route, not a server", "write http://h:1"),
        ("ftp://h", "ftp:// cannot be asked", "write http:// or https://"),
    ],
)
def test_no_address(text: str, reason: str, fix: str) -> None:
    """What is wrong with it, and what to write."""
    found = parsed(text)
    assert isinstance(found, Finding)
    assert (found.name, found.level, found.reason) == (Check.ADDRESS, Level.FAIL, reason)
    assert found.fix.startswith(fix)
    assert "pw" not in repr(found)


def test_an_address() -> None:
    """Without the slash at its end."""
    assert parsed("http://10.0.0.7:30000/") == "http://10.0.0.7:30000"


def test_nobody_listens() -> None:
    """The operating system's words, and that it was never reached."""
    port = free_port()
    found = answers(examine(f"http://127.0.0.1:{port}"))
    assert found == Finding(
        Check.ADDRESS,
        Level.FAIL,
        f"nobody listens on 127.0.0.1:{port} (connection refused); it was never reached",
        "start SGLang, or correct the port: it listens only when its model is loaded",
    )


def test_no_such_host() -> None:
    """A name that is not known here."""
    found = answers(examine("http://no-such-host.invalid:1", seconds=5.0))
    assert found.reason.startswith("the name of no-such-host.invalid:1 cannot be resolved here (")
    assert found.fix == "correct the name of the host, or use its IP address"


@pytest.mark.parametrize(
    ("said", "reason", "fix"),
    [
        (b"220 mail ready\r\n", "is not HTTP", "give the port of SGLang: another program listens there"),
        (b"", "closed the connection without an answer", "look what listens on that port, and give the port of SGLang"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "is not HTTP", "write https://"),
    ],
)
def test_no_http(said: bytes, reason: str, fix: str) -> None:
    """Another protocol, nothing at all, and TLS under http."""
    with talker(said) as url:
        found = answers(examine(url))
    assert reason in found.reason
    assert (found.level, found.fix) == (Level.FAIL, fix)


def test_silence() -> None:
    """A firewall that drops, or a server that hangs."""
    with talker(forever=b"", every=1.0) as url, talker(b"H", forever=b"x", every=0.1) as slow:
        found = answers(examine(slow, seconds=0.5))
    assert url
    assert found.reason.endswith(" did not answer in time; it was never reached")
    assert found.fix.startswith("open the port in the firewall")
    assert found.fix.startswith("open the port in the firewall")


def test_plain_server_under_https() -> None:
    """TLS does not come about."""
    with FakeSGLang() as server:
        found = answers(examine(server.url.replace("http:", "https:")))
    assert found.reason.startswith(f"TLS with {server.host_port} failed (")
    assert found.fix == "write http:// if it speaks no TLS"


def test_certificate(tmp_path: Path) -> None:
    """Not trusted by requests, until its variable names the authority."""
    certificate = make_certificate(tmp_path)
    with site({"/ready": (200, b"")}, tls=certificate.context) as server:
        fault = certificate_fault(server.url, {})
        trusted = certificate_fault(server.url, {"REQUESTS_CA_BUNDLE": str(certificate.file)})
        nowhere = certificate_fault(server.url, {"CURL_CA_BUNDLE": str(tmp_path / "none.pem")})
        found = answers(examine(server.url), fault)
        good = answers(examine(server.url), trusted)
    assert fault is not None
    assert "self" in fault
    assert (trusted, nowhere) == (None, "the authorities cannot be read: No such file or directory")
    assert (found.level, fault in found.reason) == (Level.FAIL, True)
    assert found.fix.startswith("set REQUESTS_CA_BUNDLE")
    assert good.reason == "it answers, with a certificate that is trusted here"
    assert certificate_fault("http://127.0.0.1:1", {}) is None
