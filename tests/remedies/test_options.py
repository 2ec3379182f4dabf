"""What is wanted of remedies: off by default, refused when it makes no sense, from code, file and environment alike."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sglang_telemetry import Remedies, names
from sglang_telemetry.remedies.load import from_environ, from_toml
from sglang_telemetry.remedies.options import SWITCHES


def test_all_are_off_by_default() -> None:
    """Who asks for nothing gets nothing."""
    assert Remedies().names == ()


def test_those_that_are_on() -> None:
    """By name, in the order in which they are declared."""
    wanted = Remedies(retry=True, validate=True, pause="retract", on_failure="continue_stale", stale_syncs=2)
    assert wanted.names == ("validate", "retry", "pause", "on_failure")


def test_each_remedy_has_its_actions() -> None:
    """What is counted from 0 on is known of each remedy that does something by itself."""
    assert set(SWITCHES) - set(names.REMEDY_ACTIONS) == {"tag_weights"}
    assert set(names.REMEDY_ACTIONS) <= set(SWITCHES)


def test_each_field_is_documented() -> None:
    """In the class, where an editor shows it."""
    text = Remedies.__doc__ or ""
    assert [one.name for one in fields(Remedies) if f"        {one.name}: " not in text] == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"validate": "yes"}, "validate='yes': write False or True"),
        ({"validate": 1}, "validate=1: write False or True"),
        ({"timeout": 30}, "timeout=30: write None or 'auto'"),
        ({"pause": True}, "pause=True: write None or 'retract' or 'abort'"),
        ({"pause": "in_place"}, "pause='in_place': write None or 'retract' or 'abort'"),
        ({"on_failure": "ignore"}, "on_failure='ignore': write 'raise' or 'continue_stale'"),
        ({"deadline_seconds": 0}, "deadline_seconds=0: write a number above 0"),
        ({"deadline_seconds": float("nan")}, "deadline_seconds=nan: write a number above 0"),
        ({"timeout_headroom": 0.5}, "timeout_headroom=0.5: write a number of at least 1"),
        ({"stale_syncs": 1.5, "on_failure": "continue_stale"}, "stale_syncs=1.5: write a whole number of at least 1"),
        ({"stale_syncs": True, "on_failure": "continue_stale"}, "stale_syncs=True: write a whole number of at least 1"),
        ({"timeout_floor_seconds": 90, "timeout_ceiling_seconds": 60}, "is below timeout_floor_seconds=90"),
        ({"on_failure": "continue_stale"}, "wants a bound: give stale_syncs=3"),
        ({"stale_syncs": 3}, 'go with on_failure="continue_stale"'),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], says: str) -> None:
    """With the value and what to write."""
    with pytest.raises(ValueError, match=r"write|below|bound|go with") as raised:
        Remedies(**wrong)
    assert says in str(raised.value)


def test_from_a_file(tmp_path: Path) -> None:
    """A table of a TOML file, with the names of the fields."""
    file = tmp_path / "remedies.toml"
    file.write_text('[remedies]\nvalidate = true\npause = "retract"\nretry = true\ndeadline_seconds = 45\n')
    assert from_toml(file) == Remedies(validate=True, pause="retract", retry=True, deadline_seconds=45)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read from"),
        ("validate = true", "has no table [remedies]"),
        ("[remedies", "is no TOML"),
        ("[remedies]\nvalidat = true", "there is no remedy 'validat'; there are validate, publish_atomically,"),
        ("[remedies]\nvalidate = 1", "validate=1: write False or True"),
    ],
)
def test_a_file_that_is_wrong(text: str | None, says: str, tmp_path: Path) -> None:
    """It says which file, and what to do."""
    file = tmp_path / "remedies.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=r"remedies\.toml") as raised:
        from_toml(file)
    assert says in str(raised.value)


def test_from_the_environment(tmp_path: Path) -> None:
    """A list, over what a file says."""
    file = tmp_path / "remedies.toml"
    file.write_text("[remedies]\nvalidate = true\nretry = true\n")
    environ = {
        "SGLANG_TELEMETRY_REMEDIES_FILE": str(file),
        "SGLANG_TELEMETRY_REMEDIES": "retry=off, pause = abort, deadline_seconds=9.5,"
        "on_failure=continue_stale,stale_syncs=2",
    }
    wanted = Remedies(
        validate=True, pause="abort", deadline_seconds=9.5, on_failure="continue_stale", stale_syncs=2, retry=False
    )
    assert from_environ(environ) == wanted
    assert from_environ({}) == Remedies()
    assert from_environ({"SGLANG_TELEMETRY_REMEDIES": " "}) == Remedies()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("validate retry", "there is no remedy 'validate retry'"),
        ("validate,validate=0", "validate stands there twice"),
        ("validate=maybe", "validate='maybe': write False or True"),
        ("pause", "pause=True: write None or 'retract' or 'abort'"),
        ("deadline_seconds=long", "deadline_seconds='long': write a number above 0"),
        ("deadline_seconds=inf", "deadline_seconds=inf"),
    ],
)
def test_an_environment_that_is_wrong(text: str, says: str) -> None:
    """It says which variable, and what to write."""
    with pytest.raises(ValueError, match="SGLANG_TELEMETRY_REMEDIES") as raised:
        from_environ({"SGLANG_TELEMETRY_REMEDIES": text})
    assert says in str(raised.value)
