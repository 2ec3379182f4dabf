"""Variables are put into queries as Grafana puts them in."""

import pytest

from tests.dashboards.preview.interpolate import ALL, Chosen, in_words, interpolated, interval, rate_interval

DASHBOARD = {
    "templating": {
        "list": [
            {
                "name": "run",
                "type": "query",
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"value": ["$__all"]},
            },
            {"name": "server", "type": "query", "multi": True, "includeAll": True, "options": [{"value": "a:1"}]},
            {"name": "rank", "type": "query", "includeAll": True, "multi": True},
            {"name": "runbooks", "type": "constant", "query": "https://example.org"},
            {"name": "model", "type": "query"},
        ]
    }
}


def put_in(text: str, chosen: Chosen | None = None, *, step: float = 15.0) -> str:
    return interpolated(text, DASHBOARD, chosen or {}, 1000.0, 10000.0, step=step)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"run": ["grpo"]}, "grpo"),
        ({"run": ["10.0.0.7"]}, r"10\\.0\\.0\\.7"),
        ({"run": ["a.b", "c"]}, r"(a\\.b|c)"),
        ({"run": ["a\\b"]}, r"a\\\\b"),
        ({"run": ALL}, ".*"),
        ({}, ".*"),
    ],
)
def test_of_a_variable_with_many_values_each_is_escaped_for_a_regular_expression(chosen: Chosen, expected: str) -> None:
    assert put_in("$run", chosen) == put_in("${run}", chosen) == expected


def test_all_without_a_text_for_it_is_every_option() -> None:
    assert put_in("$server", {"server": ALL}) == "a:1"


def test_all_without_text_and_options_is_an_error() -> None:
    with pytest.raises(ValueError, match="rank"):
        put_in("$rank", {"rank": ALL})


def test_a_variable_with_one_value_is_not_escaped_for_a_regular_expression() -> None:
    assert put_in("$model", {"model": ["a.b"]}) == "a.b"


@pytest.mark.parametrize(
    ("form", "expected"),
    [("regex", r"(a\.b|c)"), ("raw", "a.b,c"), ("csv", "a.b,c"), ("pipe", "a.b|c"), ("text", "a.b + c")],
)
def test_a_form_says_how_values_are_put_in(form: str, expected: str) -> None:
    assert put_in(f"${{run:{form}}}", {"run": ["a.b", "c"]}) == expected


def test_an_unknown_variable_and_a_regular_expressions_end_stay() -> None:
    assert put_in('{a=~"^x$", b="$other"}') == '{a=~"^x$", b="$other"}'


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("$__interval", "30s"),
        ("${__interval}", "30s"),
        ("$__interval_ms", "30000"),
        ("$__rate_interval", "1m"),
        ("$__range", "9000s"),
        ("$__range_s", "9000"),
        ("$__range_ms", "9000000"),
        ("$__from", "1000000"),
        ("${__to}", "10000000"),
        ("${__to:date:seconds}", "10000"),
    ],
)
def test_built_in_variables_come_from_range_and_step(variable: str, expected: str) -> None:
    assert put_in(variable, step=30.0) == expected


@pytest.mark.parametrize(
    ("hours", "width", "least", "expected"),
    [(1, 600, None, 15.0), (3, 600, None, 20.0), (24, 600, None, 120.0), (3, 600, "5m", 300.0), (1, 600, "1s", 5.0)],
)
def test_the_interval_is_rounded_and_no_less_than_allowed(
    hours: int, width: int, least: str | None, expected: float
) -> None:
    assert interval(0, hours * 3600, width, least) == expected


@pytest.mark.parametrize(("step", "expected"), [(15, 60), (45, 60), (60, 75), (300, 315)])
def test_a_rate_has_at_least_four_scrapes(step: float, expected: float) -> None:
    assert rate_interval(step) == expected


def test_a_title_has_the_words_of_the_choice() -> None:
    assert in_words("of $run, $unknown", DASHBOARD, {}) == "of All, $unknown"
    assert in_words("of ${run}", DASHBOARD, {"run": ["a.b", "c"]}) == "of a.b + c"
