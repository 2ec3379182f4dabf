"""Addresses of servers as users write them: taken, or refused with what to write."""

import pytest

from sglang_telemetry.server_truth.address import BadAddress, base_url

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("http://10.0.0.7:30000", "http://10.0.0.7:30000"),
        ("http://10.0.0.7:30000/", "http://10.0.0.7:30000"),
        ("HTTP://sglang-0.sglang:30000", "http://sglang-0.sglang:30000"),
        ("https://sglang.example", "https://sglang.example"),
        ("http://[::1]:30000", "http://[::1]:30000"),
        ("http://gateway/pool/a/", "http://gateway/pool/a"),
        ("http://generate:30000", "http://generate:30000"),
    ],
)
def test_taken(text: str, base: str) -> None:
    """Without a slash at the end, with a path that routes stand below."""
    assert base_url(text) == base


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the address is empty: write http://10.0.0.7:30000"),
        ("10.0.0.7:30000", "10.0.0.7:30000 has no scheme: write http://10.0.0.7:30000"),
        ("localhost:30000", "localhost:30000 has no scheme: write http://localhost:30000"),
        ("//localhost:30000", "localhost:30000 has no scheme: write http://localhost:30000"),
        ("http:/localhost:30000", "localhost:30000 has no scheme: write http://localhost:30000"),
        ("'localhost'", "the address has no scheme: write http://10.0.0.7:30000"),
        ("grpc://a:1", "grpc:// cannot be asked: write http:// or https://, such as http://10.0.0.7:30000"),
        ("http://", "there is no host in the address: write http://10.0.0.7:30000"),
        ("http://:30000", "there is no host in the address: write http://10.0.0.7:30000"),
        ("http://[::1", "[::1 is no host and port: write http://10.0.0.7:30000"),
        ("http://a:99999", "a:99999 has no port from 1 to 65535: write http://10.0.0.7:30000"),
        ("http://a:0", "a:0 has no port from 1 to 65535: write http://10.0.0.7:30000"),
        ("http://a:b", "a:b has no port from 1 to 65535: write http://10.0.0.7:30000"),
        ("http://a:1/generate", "/generate is a route, not a server: write http://a:1"),
        ("http://a:1/v1", "/v1 is a route, not a server: write http://a:1"),
        ("http://a:1/v1/chat/completions", "/v1/chat/completions is a route, not a server: write http://a:1"),
        (
            "http://a:1/x/update_weights_from_disk",
            "/x/update_weights_from_disk is a route, not a server: write http://a:1/x",
        ),
        ("http://a:1/pause_generation", "/pause_generation is a route, not a server: write http://a:1"),
        ("http://a:1/p?key=hunter2", "the address goes on after its path: write http://a:1/p"),
        ("http://a:1/#hunter2", "the address goes on after its path: write http://a:1"),
        ("http://a :1", "the address has a blank or a line break in it: write http://10.0.0.7:30000"),
        ("http://a:1\n", "the address has a blank or a line break in it: write http://10.0.0.7:30000"),
        ("http://a\x1b[2J:1", "the address has a blank or a line break in it: write http://10.0.0.7:30000"),
        (
            "http://me:hunter2@a:1",
            "the address has a user or a password in it: write http://10.0.0.7:30000 and set the key apart",
        ),
        (
            "me:hunter2@a:1",
            "the address has a user or a password in it: write http://10.0.0.7:30000 and set the key apart",
        ),
    ],
)
def test_refused(text: str, said: str) -> None:
    """One line that says what to write, and nothing secret in it."""
    with pytest.raises(BadAddress) as caught:
        base_url(text)
    assert str(caught.value) == f"{caught.value.reason}: {caught.value.advice}" == said
    assert SECRET not in said
