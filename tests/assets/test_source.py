"""Where the files come from: a wheel's data before the checkout's folders."""

from pathlib import Path

import pytest

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.source import Assets, load

ROOT = Path(__file__).parents[2]


def tree(root: Path, **files: str) -> Path:
    """A folder with files; two underscores stand for a slash, one for the dot of the ending."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_yml", ".yml").replace("_md", ".md").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_checkout() -> None:
    """The folders of this repository, whole."""
    found = load()
    rules = {path.name: path.read_text() for path in (ROOT / "alerts/rules").glob("*.yml")}
    assert found.rules == rules
    assert found.alertmanager.keys() >= {"alertmanager.yml", "templates/weight_sync.tmpl"}
    assert found.runbooks.keys() == {path.name for path in (ROOT / "alerts/runbooks").glob("*.md")}


def test_wheel_comes_first(tmp_path: Path) -> None:
    """An installed package looks nowhere else, even where an alerts folder lies beside it."""
    tree(tmp_path, alerts__rules__old_yml="old", p___assets__rules__new_yml="new")
    tree(tmp_path / "p" / "_assets", dashboards__a__b_json="{}", runbooks__A_md="A", rules__notes="no")
    assert load(tmp_path / "p") == Assets(
        rules={"new.yml": "new"}, alertmanager={}, runbooks={"A.md": "A"}, dashboards={"a/b.json": "{}"}
    )


def test_dashboards_of_a_checkout(tmp_path: Path) -> None:
    """They have a folder of their own at the top, with examples of provisioning; what makes them is no part of it."""
    tree(tmp_path, alerts__rules__a_yml="a", dashboards__d_json="{}", dashboards__p__d_yml="p", p__init="")
    tree(tmp_path / "dashboards", p__README_md="no", made="no")
    assert load(tmp_path / "p").dashboards == {"d.json": "{}", "p/d.yml": "p"}


def test_nowhere(tmp_path: Path) -> None:
    """One line that says how to get them."""
    with pytest.raises(
        AssetError, match=r"the rule files are neither in .*: install sglang-telemetry from its wheel"
    ) as told:
        load(tmp_path)
    assert len(str(told.value).splitlines()) == 1


def test_line_ends_stay(tmp_path: Path) -> None:
    """Byte for byte, whatever they are."""
    (tmp_path / "_assets/rules").mkdir(parents=True)
    (tmp_path / "_assets/rules/a.yml").write_bytes(b"a\r\nb\n")
    assert load(tmp_path).rules == {"a.yml": "a\r\nb\n"}
