"""Keys: from the environment and from files, to the routes that want them, and shown nowhere."""

import copy
import os
from pathlib import Path

import pytest

from sglang_telemetry.names import Env
from sglang_telemetry.server_truth.bounded import request
from sglang_telemetry.server_truth.client import look
from sglang_telemetry.server_truth.keys import MAX_KEY_BYTES, NO_KEYS, Keys
from sglang_telemetry.testing import FakeSGLang

KEY, ADMIN = "k-3f9a-normal", "k-77c2-admin"


def test_nothing_is_set() -> None:
    """An empty variable is none, as a compose file leaves it."""
    assert Keys.from_environ({}) == Keys.from_environ(dict.fromkeys(Env, "")) == NO_KEYS == Keys()
    assert (NO_KEYS.api_key, NO_KEYS.admin_api_key, repr(NO_KEYS)) == (
        None,
        None,
        "Keys(api_key=None, admin_api_key=None)",
    )


def test_from_variables() -> None:
    """Each by its own."""
    keys = Keys.from_environ({Env.API_KEY: KEY, Env.ADMIN_API_KEY: ADMIN})
    assert keys == Keys(api_key=KEY, admin_api_key=ADMIN)
    assert keys != Keys(api_key=KEY)
    assert keys != KEY


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_from_files(tmp_path: Path, ending: str) -> None:
    """One newline at the end is an editor's."""
    file = tmp_path / "key"
    file.write_bytes(f"{KEY}{ending}".encode())
    assert Keys.from_environ({Env.API_KEY_FILE: str(file)}) == Keys(api_key=KEY)
    assert Keys.from_environ({Env.ADMIN_API_KEY_FILE: str(file)}) == Keys(admin_api_key=KEY)


def test_shown_nowhere(tmp_path: Path) -> None:
    """Not by repr, not by str, not by format, not by a copy, not by what is inside."""
    file = tmp_path / "key"
    file.write_text(ADMIN)
    keys = Keys.from_environ({Env.API_KEY: KEY, Env.ADMIN_API_KEY_FILE: str(file)})
    inside = [getattr(keys, name) for name in Keys.__slots__]
    shown = f"{keys!r} {keys} {keys!s} {copy.deepcopy(keys)!r} {inside!r}"
    assert (KEY in shown, ADMIN in shown) == (False, False)
    assert repr(keys) == "Keys(api_key='***', admin_api_key='***')"
    assert not hasattr(keys, "__dict__")


def test_rotated_file(tmp_path: Path) -> None:
    """It is read anew when it was written, replaced or its link was turned; what cannot be read changes nothing."""
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
    first.write_text("one")
    second.write_text("two")
    link.symlink_to(first)
    keys = Keys.from_environ({Env.API_KEY_FILE: str(link)})
    seen = [keys.api_key]
    turned = tmp_path / "turned"
    turned.symlink_to(second)
    os.replace(turned, link)
    seen.append(keys.api_key)
    second.write_text("three\n")
    seen.append(keys.api_key)
    second.write_text("")
    seen.append(keys.api_key)
    second.unlink()
    seen.append(keys.api_key)
    second.write_text("bad\nkey")
    seen.append(keys.api_key)
    second.write_text("four")
    seen.append(keys.api_key)
    assert seen == ["one", "two", "three", "three", "three", "three", "four"]


@pytest.mark.parametrize("key", [f"{KEY}\n{KEY}", f"{KEY}\x7f", f"{KEY}\u2028", f" {KEY}", f"{KEY}\t", KEY * 1000])
def test_variable_that_cannot_be_sent(key: str) -> None:
    """The variable is named, the key is not in it."""
    with pytest.raises(ValueError, match=f"^{Env.ADMIN_API_KEY}: the key") as caught:
        Keys.from_environ({Env.ADMIN_API_KEY: key})
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(ValueError, match=r"^the key"):
        Keys(api_key=key)


@pytest.mark.parametrize(
    ("variable", "file_variable"), [(Env.API_KEY, Env.API_KEY_FILE), (Env.ADMIN_API_KEY, Env.ADMIN_API_KEY_FILE)]
)
def test_given_twice(tmp_path: Path, variable: Env, file_variable: Env) -> None:
    """Nobody knows which of them counts."""
    file = tmp_path / "key"
    file.write_text(KEY)
    with pytest.raises(ValueError) as caught:
        Keys.from_environ({variable: KEY, file_variable: str(file)})
    assert str(caught.value) == f"{variable} and {file_variable} are both set: unset one of them"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: write the key into it"),
        (b"\n", "is empty: write the key into it"),
        (b" \r\n", "is empty: write the key into it"),
        (f"{KEY}\n\n".encode(), "the key cannot be sent in a header: it has a line break"),
        (f"API_KEY={KEY}\nB=1\n".encode(), "it has a line break"),
        (b"\xff\xfe" + KEY.encode("utf-16-le"), "a character beyond ASCII"),
        (KEY.encode() + b"\n" * MAX_KEY_BYTES, "is that another file?"),
    ],
)
def test_file_that_is_no_key(tmp_path: Path, content: bytes, said: str) -> None:
    """The variable is named with what to do; the key is not in it."""
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        Keys.from_environ({Env.API_KEY_FILE: str(file)})
    assert str(caught.value).startswith(f"{Env.API_KEY_FILE}: ")
    assert said in str(caught.value)
    assert KEY not in str(caught.value)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    """It is named with the reason."""
    for path, reason in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ValueError) as caught:
            Keys.from_environ({Env.API_KEY_FILE: str(path)})
        assert str(caught.value) == (
            f"{Env.API_KEY_FILE}: {path} cannot be read ({reason}): name a file with the key in it"
        )


@pytest.mark.parametrize(
    ("path", "both", "api", "admin"),
    [
        ("/model_info", KEY, KEY, None),
        ("/v1/loads?include=core", KEY, KEY, None),
        ("/server_info", KEY, KEY, None),
        ("/weights_checker", ADMIN, KEY, ADMIN),
        ("/update_weights_from_disk", ADMIN, KEY, ADMIN),
        ("/update_weights_from_tensor", ADMIN, KEY, ADMIN),
        ("/continue_generation", ADMIN, KEY, ADMIN),
        ("/flush_cache?timeout=1", ADMIN, KEY, ADMIN),
        ("/ready", None, None, None),
        ("/health_generate", None, None, None),
        ("/metrics", None, None, None),
    ],
)
def test_which_route_gets_which(path: str, both: str | None, api: str | None, admin: str | None) -> None:
    """As SGLang wants them; the administrator's key goes nowhere else."""
    keys = (Keys(api_key=KEY, admin_api_key=ADMIN), Keys(api_key=KEY), Keys(admin_api_key=ADMIN))
    assert [one.of_route(path) for one in keys] == [both, api, admin]
    assert NO_KEYS.of_route(path) is None


def test_stand_in_of_its_own_process_wants_them_too() -> None:
    """Both keys reach it, and neither is on its command line."""
    with FakeSGLang.spawn(api_key=KEY, admin_api_key=ADMIN) as server:
        found = look(server.url, checksum=True, keys=Keys(api_key=KEY, admin_api_key=ADMIN))
        assert (found.info_status, found.checksum_status) == (200, 200)
        assert look(server.url, checksum=True).info_status == 401
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode()
    assert (KEY in command, ADMIN in command) == (False, False)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 401),
        ("GET", "/update_weights_from_disk", 401),
        ("OPTIONS", "/update_weights_from_disk", 405),
        ("OPTIONS", "/nope", 404),
        ("GET", "/openapi.json", 401),
        ("GET", "/ping", 401),
        ("GET", "/health", 200),
    ],
)
def test_stand_in_refuses_what_the_real_one_refuses(method: str, path: str, status: int) -> None:
    """With both keys set and none shown (SGLang 0.5.23, measured): also what is not there; never OPTIONS."""
    with FakeSGLang(api_key=KEY, admin_api_key=ADMIN) as server:
        assert request(server.url, path, limit=1 << 16, left=lambda: 10.0, method=method).status == status


def test_stand_in_takes_a_wrong_method_for_a_normal_route() -> None:
    """With the admin key alone, a GET of a route that only takes POSTs is open, and 405 (SGLang 0.5.23, measured)."""
    with FakeSGLang(admin_api_key=ADMIN) as server:
        for method, status in (("GET", 405), ("POST", 401)):
            found = request(
                server.url, "/update_weights_from_disk", limit=1 << 16, left=lambda: 10.0, method=method, body=b"{}"
            )
            assert found.status == status
