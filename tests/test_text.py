"""Text from outside: no secrets, no control characters, cut at a character, and the server's label from any URL."""

import http.client
import time
from typing import Any

import httpx
import pytest
import requests
import urllib3

from sglang_telemetry.text import MAX_BYTES, clean, clean_url, said_by, server_of
from tests.harness.answers import SUCCESS, Answers

SECRET = "s3cr3t-Value.42"


@pytest.mark.parametrize(
    "text",
    [
        f"http://user:{SECRET}@host:30000/x",
        f"http://user:p/{SECRET}@host:30000/x",
        f"http://{SECRET}@host:30000/x",
        f"redis://:{SECRET}@host:6379",
        f"cannot reach 'http://user:{SECRET}@host/': refused",
        f"postgres://user:p@{SECRET}@host/db",
        f"Authorization: Bearer {SECRET}",
        f"authorization: basic {SECRET}",
        f"Authorization: Token {SECRET}",
        f"Authorization: {SECRET}",
        f"Proxy-Authorization: Bearer {SECRET}",
        f"sent Bearer {SECRET} to it",
        f'{{"api_key": "{SECRET}", "a": 1}}',
        f'{{"admin_api_key":"{SECRET}"}}',
        f"{{'Authorization': 'Bearer {SECRET}'}}",
        f'{{"a": "x", "access_token" : "{SECRET}"}}',
        f'{{"api_key":"a\\"{SECRET}"}}',
        f'{{"message":"{{\\"api_key\\": \\"{SECRET}\\"}}"}}',
        f'{{"token":"{SECRET}',
        f"X-API-Key: {SECRET}",
        f"--api-key={SECRET}",
        f"password={SECRET}",
        f"AWS_SECRET_ACCESS_KEY = {SECRET}",
        f"GET /generate?token={SECRET}&x=1 HTTP/1.1",
        f"http://host/a?q={SECRET}",
        f"see ?token={SECRET}",
        f"Max retries exceeded with url: /update?a=1&api_key={SECRET} (Caused by",
        f"tok\x00en={SECRET}",
        f"Bear\x1b[0mer {SECRET}",
        "key sk-s3cr3t-Value.42 was refused",
        "hf_s3cr3tValue42",
    ],
)
def test_secret_is_taken_out(text: str) -> None:
    """None of the ways in which a secret is written comes through."""
    cleaned = clean(text)
    assert "s3cr3t" not in cleaned
    assert "Value" not in cleaned


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Success.",
        "Error: model.safetensors: key 'lm_head.weight' not found",
        "is /dev/shm full? yes",
        "mail a@b.example\n\tindented",
        "gewichte für 模型 🙂",
    ],
)
def test_plain_text_is_untouched(text: str) -> None:
    """What holds no secret and no control character stays as it is."""
    assert clean(text) == text


def test_what_surrounds_a_secret_stays() -> None:
    """Only the secret goes: the host, the other fields and the rest of the sentence can be read."""
    text = f'POST http://u:{SECRET}@10.0.0.7:30000/x {{"api_key": "{SECRET}", "flush": true}}'
    assert clean(text) == 'POST http://10.0.0.7:30000/x {"api_key": [redacted], "flush": true}'


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\x00b\x07c\x08d\x7fe", "abcde"),
        ("one\r\ntwo\rthree\nfour\tfive", "one\ntwo\nthree\nfour\tfive"),
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bcreset", "creset"),
        ("\x1b", ""),
        ("\u202eabc\u2028\u2066def", "abcdef"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
    ],
)
def test_control_characters(text: str, cleaned: str) -> None:
    """Nothing is left that moves a cursor, hides a line or turns the reading direction."""
    assert clean(text) == cleaned


@pytest.mark.parametrize("character", ["x", "é", "模", "🙂"])
@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_cut_at_a_character(character: str, shift: int) -> None:
    """At most 8 KiB of UTF-8, and never half a character at the end."""
    text = "a" * shift + character * 9000
    cut = clean(text)
    size = len(character.encode())
    assert cut == text[: shift + (MAX_BYTES - shift) // size]
    assert MAX_BYTES - size < len(cut.encode()) <= MAX_BYTES


def test_exact_fit_is_not_cut() -> None:
    """8 KiB are allowed, to the byte."""
    assert clean("é" * (MAX_BYTES // 2)) == "é" * (MAX_BYTES // 2)


def test_secret_at_the_cut() -> None:
    """A secret of which only the beginning fits is taken out all the same."""
    for before in range(MAX_BYTES - 60, MAX_BYTES):
        assert "s3c" not in clean("-" * before + f" Bearer {SECRET}" * 5)


@pytest.mark.parametrize(
    ("url", "cleaned"),
    [
        ("http://u:p@10.0.0.7:30000/update?a=1#part", "http://10.0.0.7:30000/update"),
        ("http://u:p@ss@h:1/x", "http://h:1/x"),
        ("http://[::1]:30000/x", "http://[::1]:30000/x"),
        ("/update_weights?api_key=x", "/update_weights"),
        ("http://h:99999/x?token=abc", "http://h:99999/x"),
        ("http://h/\x1b[31mred", "http://h/red"),
        ("", ""),
        ("not a url", "not a url"),
        ("http://h/" + "x" * 3000, "http://h/" + "x" * (1024 - 9)),
    ],
)
def test_clean_url(url: str, cleaned: str) -> None:
    """No user, no query, no fragment, no control characters, at most 1 KiB."""
    assert clean_url(url) == cleaned


def test_clean_url_that_cannot_be_parsed() -> None:
    """It is cleaned as text: the secrets go, an error does not come."""
    assert clean_url(f"http://u:{SECRET}@[::1/x?token={SECRET}") == "http://[::1/x?[redacted]"


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://10.0.0.7:30000", "10.0.0.7:30000"),
        ("http://10.0.0.7:30000/v1/?a=1", "10.0.0.7:30000"),
        ("HTTP://Host.Example:1", "host.example:1"),
        ("http://user:p@ss@h:1", "h:1"),
        ("http://[::1]:30000", "[::1]:30000"),
        ("[::1]:30000", "[::1]:30000"),
        ("http://[2001:db8::7]", "[2001:db8::7]:80"),
        ("10.0.0.7:30000/generate", "10.0.0.7:30000"),
        ("h", "h:80"),
        ("http://h", "h:80"),
        ("https://h", "h:443"),
        ("http://h:", "h:80"),
        ("http://h:99999", None),
        ("http://h:abc", None),
        ("http://h:-1", None),
        ("http://[::1", None),
        ("::1", None),
        ("http://", None),
        ("unix:///tmp/socket", None),
        ("", None),
        (None, None),
    ],
)
def test_server_of(url: str | None, server: str | None) -> None:
    """``host:port`` of whatever an engine has for a base URL, None for what names no server."""
    assert server_of(url) == server


def test_server_label_is_short_and_printable() -> None:
    """A label value stays one, also of a hostile URL."""
    assert len(server_of("http://" + "h" * 5000 + ":1") or "") <= 256
    assert (server_of("http://a\x1b[31m.example:1") or "").isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "token " + "a" * 3000,
        "." * 3000 + " key",
        "0123456789abcdef" * 190 + " api_key",
        "token" * 60,
        "a+" * 1500 + "@ ://",
        "key" + "\\" * 3000,
        "token" + " " * 3000,
        "\x1b]" * 1500,
    ],
)
def test_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    """It is cleaned on the trainer's thread: five times the text may not cost twenty-five times the seconds."""
    took = []
    for size in (1, 1, 5):
        began = time.perf_counter()
        clean(size * text, limit=MAX_BYTES * size)
        took.append(time.perf_counter() - began)
    assert took[2] < 15 * max(took[1], 0.002)


@pytest.mark.parametrize(
    "text",
    [
        "launch --api-key s3cr3t-Value.42 --port 1",
        "['launch', '--api-key', 's3cr3t-Value.42', '--port', '1']",
        "access_key=s3cr3t-Value.42",
        "private_key: s3cr3t-Value.42",
        "pwd=s3cr3t-Value.42",
        "Set-Cookie: s3cr3t-Value.42",
        "glpat-s3cr3tValue42",
        "github_pat_s3cr3tValue42",
        "AKIAS3CR3TVALUE42X",
        "eyJhbGciOiJI.s3cr3tValue42.s3cr3tValue42",
    ],
)
def test_more_ways_in_which_a_secret_is_written(text: str) -> None:
    """Options, cookies, and tokens that are known by how they begin."""
    assert "s3cr3t" not in clean(text).lower()


def _by_http_client(url: str, headers: Any) -> None:
    one = http.client.HTTPConnection(url.removeprefix("http://"))
    try:
        one.request("POST", "/", headers=headers)
    finally:
        one.close()


SENDERS: dict[str, Any] = {
    "requests": lambda url, headers: requests.post(url, headers=headers, timeout=5),
    "session": lambda url, headers: requests.Session().post(url, headers=headers, timeout=5),
    "httpx": lambda url, headers: httpx.post(url, headers=headers, timeout=5),
    "urllib3": lambda url, headers: urllib3.request("POST", url, headers=headers, timeout=5),
    "http.client": _by_http_client,
}


@pytest.mark.parametrize("client", SENDERS)
@pytest.mark.parametrize("value", [f"{SECRET}\n", f'a\'b "{SECRET}"\n', f"a, b; {SECRET}\n", f"{SECRET}\n".encode()])
def test_header_that_cannot_be_sent(client: str, value: Any) -> None:
    """A key that was read from a file with its last line's end: each client shows it whole in what it raises."""
    with Answers(SUCCESS) as server, pytest.raises(Exception, match=r"s3cr3t") as raised:
        SENDERS[client](server.url, {"X-Key": value})
    assert "s3cr3t" not in said_by(raised.value)
    assert "s3cr3t" not in clean(f"Traceback:\n{raised.value!r}")
    assert "header value" in said_by(raised.value)


@pytest.mark.parametrize("value", [(SECRET,), [SECRET], {"a": SECRET}])
def test_header_that_is_no_text(value: Any) -> None:
    """requests shows the value of that, too."""
    with pytest.raises(requests.exceptions.InvalidHeader, match=r"s3cr3t") as raised:
        requests.post("http://127.0.0.1:1", headers={"X-Key": value}, timeout=5)
    assert "s3cr3t" not in said_by(raised.value)
    assert "Header part" in said_by(raised.value)


@pytest.mark.parametrize(
    "text", [f"Invalid header value {SECRET}\n{SECRET}", f"ILLEGAL HEADER VALUE: {SECRET}", "in header value: "]
)
def test_header_values_as_others_write_them(text: str) -> None:
    """With quotes or without, to the last of its lines."""
    assert "s3cr3t" not in clean(text)
    assert "header value" in clean(text).lower()


def test_words_about_headers_are_untouched() -> None:
    """Where no value is shown."""
    text = "Header value must be str or bytes, not <class 'int'>"
    assert clean(text) == text
