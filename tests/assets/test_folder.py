"""Into a folder: all or nothing, never half a file, and nothing of the site's is replaced unasked."""

import os
import stat
from pathlib import Path

import pytest

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.folder import Written, write
from tests.harness.mounts import fill, tmpfs

FILES = {"rules/a.yml": "a\n", "runbooks/A.md": "A\n"}


def contents(folder: Path) -> dict[str, str]:
    """All files below, hidden ones too."""
    return {str(one.relative_to(folder)): one.read_text() for one in folder.rglob("*") if one.is_file()}


def test_new_and_again(tmp_path: Path) -> None:
    """The folder is made; the second time nothing is touched."""
    folder = tmp_path / "x" / "y"
    first = write(folder, FILES, force=False)
    assert first == Written(written=tuple(FILES), unchanged=(), strangers=())
    before = (folder / "rules/a.yml").stat().st_mtime_ns
    again = write(folder, FILES, force=False)
    assert again == Written(written=(), unchanged=tuple(FILES), strangers=())
    assert (contents(folder), (folder / "rules/a.yml").stat().st_mtime_ns) == (FILES, before)


def test_readable_by_prometheus(tmp_path: Path) -> None:
    """It runs as another user: the permissions are those of any new file."""
    write(tmp_path, FILES, force=False)
    (tmp_path / "plain").write_text("")
    modes = {stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("plain", *FILES)}
    assert len(modes) == 1


def test_a_file_that_differs(tmp_path: Path) -> None:
    """It stays, and so does everything else, until it is forced."""
    write(tmp_path, {"rules/a.yml": "mine\n"}, force=False)
    with pytest.raises(AssetError, match=r"rules/a.yml in .* differ from this export: give --force"):
        write(tmp_path, FILES, force=False)
    assert contents(tmp_path) == {"rules/a.yml": "mine\n"}
    write(tmp_path, FILES, force=True)
    assert contents(tmp_path) == FILES


def test_other_files_stay(tmp_path: Path) -> None:
    """Also with force; a rule file that Prometheus would load beside ours is told."""
    for name in ("rules/weight_sync.yml", "rules/notes.txt", "runbooks/own.md", "other.yml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine\n")
    assert write(tmp_path, FILES, force=True).strangers == ("rules/weight_sync.yml",)
    assert len(contents(tmp_path)) == 6


@pytest.mark.parametrize("ending", ["json", "yml"])
def test_dashboards_of_another_export(tmp_path: Path, ending: str) -> None:
    """Grafana would show them twice, and kubectl stops at a bare dashboard: told, whichever format is written."""
    (tmp_path / "dashboards/provisioning").mkdir(parents=True)
    for name in ("old.json", "old.yml", "notes.txt", "provisioning/own.yml"):
        (tmp_path / "dashboards" / name).write_text("{}")
    outcome = write(tmp_path, {f"dashboards/new.{ending}": "{}"}, force=False)
    assert outcome.strangers == ("dashboards/old.json", "dashboards/old.yml")


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    """What it points to, perhaps another's file, is left alone."""
    (tmp_path / "target").write_text("theirs\n")
    (tmp_path / "out/rules").mkdir(parents=True)
    (tmp_path / "out/rules/a.yml").symlink_to(tmp_path / "target")
    write(tmp_path / "out", FILES, force=True)
    assert (tmp_path / "target").read_text() == "theirs\n"
    assert not (tmp_path / "out/rules/a.yml").is_symlink()


@pytest.mark.parametrize("where", ["", "rules"])
def test_a_file_where_a_folder_should_be(tmp_path: Path, where: str) -> None:
    """An error of the system, and nothing is written."""
    path = tmp_path / "out" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("theirs\n")
    with pytest.raises(OSError):
        write(tmp_path / "out", FILES, force=True)
    assert path.read_text() == "theirs\n"


def test_a_folder_where_a_file_should_be(tmp_path: Path) -> None:
    """The others are not written either."""
    (tmp_path / "runbooks/A.md").mkdir(parents=True)
    with pytest.raises(OSError):
        write(tmp_path, FILES, force=True)
    assert contents(tmp_path) == {}


def test_full_disk(tmp_path: Path) -> None:
    """What was there is there, whole, and nothing else."""
    with tmpfs(tmp_path / "disk", size="64k") as disk:
        write(disk / "out", {"rules/a.yml": "old\n"}, force=False)
        ballast = fill(disk, leave=8192)
        with pytest.raises(OSError, match=r"No space left"):
            write(disk / "out", {"rules/a.yml": "new\n", "runbooks/A.md": "x" * 30_000}, force=True)
        assert contents(disk / "out") == {"rules/a.yml": "old\n"}
        ballast.unlink()


def test_read_only(tmp_path: Path) -> None:
    """The system's words, which name the file system."""
    with tmpfs(tmp_path / "disk", read_only=True) as disk:
        with pytest.raises(OSError, match=r"Read-only"):
            write(disk / "out", FILES, force=False)


def test_nothing_is_left_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that fails leaves no temporary files."""

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(PermissionError):
        write(tmp_path, FILES, force=False)
    assert contents(tmp_path) == {}
