"""Label matchers: read as PromQL, written so that nothing around them takes them for its own."""

import json

import pytest

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.matchers import Matcher, parse_matchers


def one(operator: str, value: str) -> Matcher:
    """A matcher of the label job."""
    return Matcher(label="job", operator=operator, value=value)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('job="rl"', [one("=", "rl")]),
        (" job = 'rl' , ", [one("=", "rl")]),
        ("job=`a\\b`", [one("=", "a\\b")]),
        (r'job=~"a\\.b|c"', [one("=~", r"a\.b|c")]),
        ('job!="a",job!~"b.*"', [one("!=", "a"), one("!~", "b.*")]),
        (r'job="a\"b"', [one("=", 'a"b')]),
        ('job=""', [one("=", "")]),
        ('job="a,b}"', [one("=", "a,b}")]),
    ],
)
def test_read(text: str, read: list[Matcher]) -> None:
    """All operators and all quotes."""
    assert list(parse_matchers(text)) == read


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("rl-team/a_1.b", '"rl-team/a_1.b"'),
        ("host:9464", '"host:9464"'),
        ("a: b", r'"a\x3a b"'),
        ("a:", r'"a\x3a"'),
        ("a #b", r'"a \x23b"'),
        ('"\\', r'"\"\\"'),
        ("%s{{x}}'`", r'"\x25s\x7b\x7bx\x7d\x7d\x27\x60"'),
        ("ü😀", '"\\u00fc\\U0001f600"'),
    ],
)
def test_written(value: str, written: str) -> None:
    """As it is where it can be read, as escapes where YAML, a template or a format would stumble over it."""
    assert str(one("=", value)) == f"job={written}"
    if "\\x" not in written and "\\U" not in written:
        assert json.loads(written) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "job",
        "job=rl",
        'job="rl',
        '{job="rl"}',
        'job="a" or x',
        'job=="a"',
        'job="a"}',
        'job="a";x="b"',
        'jöb="a"',
        '1job="a"',
        '__name__="x"',
        '__meta="x"',
        'job="a\nb"',
        'job="a\x00"',
        'job="a\u2028"',
        r'job="a\.b"',
        r'job="\n"',
        'run="a"',
        'rank="0"',
        'server=~".*"',
        'le="1"',
        'job=~"("',
        'job=~"a(?=b)"',
        r'job=~"(a)\\1"',
        'job=~"a++"',
        f'job="{"x" * 1000}",cluster="{"y" * 1000}"',
        ',job="a"',
        'job="a",,',
        'job=~"(?<!x)a"',
        'job=~"[z-a]"',
    ],
)
def test_refused(text: str) -> None:
    """One line that names the option."""
    with pytest.raises(AssetError, match=r"^--select") as told:
        parse_matchers(text)
    assert len(str(told.value).splitlines()) == 1


def test_a_label_of_ours_is_refused_with_the_reason() -> None:
    """Alerts about series without that label would never fire."""
    with pytest.raises(AssetError, match=r"run is a label of the metrics themselves, and not all of them have it"):
        parse_matchers('run="grpo"')
