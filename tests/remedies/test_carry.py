"""What a new checkpoint folder keeps of the old one."""

import errno
import os
from pathlib import Path

import pytest

from sglang_telemetry.remedies.carry import carry_over, copy_attributes, folders_with_weights, is_weights


def tree(folder: Path) -> dict[str, str]:
    """All files by their paths, and what they hold; links hold what they lead to."""
    return {
        str(one.relative_to(folder)): f"-> {os.readlink(one)}" if one.is_symlink() else one.read_text()
        for one in folder.rglob("*")
        if one.is_symlink() or one.is_file()
    }


def fill(folder: Path, *names: str, text: str = "old") -> Path:
    """A folder with files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("model.safetensors", True),
        ("model.safetensors.index.json", True),
        ("model.fp16.safetensors.index.json", True),
        ("pytorch_model.bin", True),
        ("pytorch_model.bin.index.json", True),
        ("x.gguf", True),
        ("training_args.bin", False),
        ("optimizer.pt", False),
        ("config.json", False),
        ("vocab.index.json", False),
    ],
)
def test_weights_by_name(name: str, weights: bool) -> None:
    """An index belongs to them; what SGLang never loads does not."""
    assert is_weights(name) is weights


def test_old_weights_are_left_where_new_ones_are(tmp_path: Path) -> None:
    """And only there: checkpoints that the trainer keeps in subfolders are its own."""
    old = fill(
        tmp_path / "old",
        *("model-1.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "training_args.bin", "a.json"),
        *("b.json", "sub/model-1.safetensors", "sub/c.json", "checkpoint-500/model.safetensors", "empty/deep/x"),
    )
    new = fill(tmp_path / "new", "model.safetensors", "b.json", "sub/model.safetensors", text="new")
    written = folders_with_weights(str(new))
    assert written == {".", "sub"}
    assert carry_over(str(old), str(new), written) == 5
    assert tree(new) == {
        "model.safetensors": "new",
        "training_args.bin": "old",
        "a.json": "old",
        "b.json": "new",
        "sub/model.safetensors": "new",
        "sub/c.json": "old",
        "checkpoint-500/model.safetensors": "old",
        "empty/deep/x": "old",
    }
    assert (new / "a.json").samefile(old / "a.json")
    assert carry_over(str(old), str(new), written) == 0


def test_links_pipes_and_what_is_there_for_a_moment(tmp_path: Path) -> None:
    """Links stay links, to folders too; what NFS has removed already and a check of ours writes is not kept."""
    old = fill(tmp_path / "old", "x.json", ".nfs000000000000ab0100000001", ".sglang-telemetry-check-12", "was/y")
    (old / ".sglang-telemetry-check-13").mkdir()
    (old / "tokenizer").symlink_to("../tokenizer")
    (old / "nowhere").symlink_to("nothing")
    os.mkfifo(old / "pipe")
    new = fill(tmp_path / "new", "was", text="a file now")
    assert carry_over(str(old), str(new), frozenset()) == 4
    assert tree(new) == {"x.json": "old", "was": "a file now", "tokenizer": "-> ../tokenizer", "nowhere": "-> nothing"}
    assert sorted(os.listdir(new)) == ["nowhere", "pipe", "tokenizer", "was", "x.json"]
    assert carry_over(str(tmp_path / "none"), str(new), frozenset()) == 0


@pytest.mark.parametrize("code", [errno.EPERM, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP])
def test_a_copy_where_there_is_no_link(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its mode and times."""

    def link(*args: object, **names: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    old = fill(tmp_path / "old", "x.json")
    (old / "x.json").chmod(0o640)
    os.utime(old / "x.json", ns=(10**18, 10**18))
    (old / "link").symlink_to("x.json")
    os.mkfifo(old / "pipe")
    (tmp_path / "new").mkdir()
    assert carry_over(str(old), str(tmp_path / "new"), frozenset()) == 2
    assert tree(tmp_path / "new") == {"x.json": "old", "link": "-> x.json"}
    there = (tmp_path / "new" / "x.json").stat()
    assert (there.st_mode & 0o7777, there.st_mtime_ns) == (0o640, 10**18)


def test_what_disappears_meanwhile_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody removes a file between the listing and the link."""
    real = os.link

    def link(source: str, target: str, **names: bool) -> None:
        os.unlink(source)
        real(source, target, **names)

    monkeypatch.setattr(os, "link", link)
    old = fill(tmp_path / "old", "x.json")
    (tmp_path / "new").mkdir()
    assert carry_over(str(old), str(tmp_path / "new"), frozenset()) == 0


def test_attributes(tmp_path: Path) -> None:
    """Mode with setgid, and extended attributes; of subfolders too, also those that nobody may write into."""
    old = fill(tmp_path / "old", "sub/x.json")
    old.chmod(0o2750)
    (old / "sub").chmod(0o555)
    try:
        os.setxattr(old, "user.origin", b"me")
        names = ["user.origin"]
    except OSError:  # a file system without them
        names = []
    (tmp_path / "new").mkdir()
    copy_attributes(str(old), str(tmp_path / "new"))
    carry_over(str(old), str(tmp_path / "new"), frozenset())
    assert ((tmp_path / "new").stat().st_mode & 0o7777, os.listxattr(tmp_path / "new")) == (0o2750, names)
    assert (tmp_path / "new" / "sub").stat().st_mode & 0o7777 == 0o555


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_owner_and_group(tmp_path: Path) -> None:
    """As far as this user may."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    os.chown(tmp_path / "old", 1234, 5678)
    copy_attributes(str(tmp_path / "old"), str(tmp_path / "new"))
    there = (tmp_path / "new").stat()
    assert (there.st_uid, there.st_gid) == (1234, 5678)
