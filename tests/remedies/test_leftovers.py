"""What is left beside a folder is told apart: mine, somebody's, nobody's, and another folder's."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from sglang_telemetry.remedies.claims import QUIET_SECONDS, Beside, Claim, Role
from sglang_telemetry.remedies.leftovers import Tidied, forsake, tidy
from tests.harness.mounts import tmpfs
from tests.harness.processes import wait_until

NOTHING = Tidied(done=(), used=(), failed=())


def tidied(folder: Path, *, network: bool = False, certain: bool = True) -> Tidied:
    """Tidy beside a folder."""
    return tidy(str(folder), network=network, certain=certain)


def left(folder: Path, role: Role = Role.STAGING, boot: str | None = None) -> Path:
    """A folder that a dead process has left, with a file in it."""
    path = Path(Beside(str(folder)).free(role))
    if boot is not None:
        before, _, after = path.name.rsplit("-", 2)
        path = path.with_name(f"{before}-{boot}-{after}")
    path.mkdir()
    (path / "model.safetensors").write_text(role)
    return path


def test_of_the_dead(tmp_path: Path) -> None:
    """It is removed; what only looks like it is not."""
    live = tmp_path / "policy"
    live.mkdir()
    path = left(live)
    others = [left(tmp_path / "policy2"), left(tmp_path / f"policy{path.name[len('.policy') :]}")]
    for name in (".policy.sglang-telemetry-mine", ".policy.sglang-telemetry-staging-1-2", "sglang-telemetry"):
        others.append(tmp_path / name)
        others[-1].mkdir()
    file = Path(Beside(str(live)).free(Role.STAGING))
    file.touch()
    assert tidied(live) == Tidied(done=(f"removed {path}",), used=(), failed=())
    assert tidied(live) == NOTHING
    assert sorted(tmp_path.iterdir()) == sorted([live, *others, file])


def test_of_the_living(tmp_path: Path) -> None:
    """It is left alone; a trial is nobody's sync."""
    beside = Beside(str(tmp_path / "policy"))
    claim, trial = beside.make(Role.STAGING), beside.make(Role.TRIAL)
    assert tidied(tmp_path / "policy", certain=False) == Tidied(done=(), used=(claim.path,), failed=())
    claim.release()
    trial.release()
    assert len(tidied(tmp_path / "policy").done) == 2


def test_what_was_moved_aside_comes_back(tmp_path: Path) -> None:
    """The newest, and only when the folder is missing."""
    live = tmp_path / "policy"
    older, newer, staging = left(live, Role.ASIDE), left(live, Role.ASIDE), left(live)
    (newer / "newer").touch()

    def changed() -> bool:
        os.chmod(newer, 0o700)
        return newer.stat().st_ctime_ns > older.stat().st_ctime_ns

    wait_until(changed, "the clock of the file system goes on")
    assert tidied(live).done == (f"put back {live}", f"removed {older}", f"removed {staging}")
    assert sorted(os.listdir(live)) == ["model.safetensors", "newer"]
    assert list(tmp_path.iterdir()) == [live]


@pytest.mark.parametrize("name", ["policy", "policy-aside-1"])
def test_half_removed_it_is_not_put_back(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has another name before its first file goes, and one of the same folder."""
    live = tmp_path / name
    claim = Claim.take(str(left(live, Role.ASIDE)))
    assert claim is not None

    def unlink(*args: object, **names: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        assert isinstance(forsake(claim), OSError)
    assert tidied(live).done == (f"removed {claim.path}",)
    assert not live.exists()


def test_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether somebody uses it cannot be told: it goes with the next sync, and not before."""

    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    live = tmp_path / "policy"
    path = left(live)
    assert tidied(live) == NOTHING
    assert tidied(live, certain=False).done == (f"removed {path}",)
    left(live, Role.ASIDE)
    assert tidied(live).done == (f"put back {live}",)


def test_of_another_host(tmp_path: Path) -> None:
    """Its locks are not seen here: what was used lately is left alone; on a file system of this host it is dead."""
    live = tmp_path / "policy"
    live.mkdir()
    fresh, quiet = left(live, boot="00ab00cd"), left(live, boot="00ab00ce")
    past = os.stat(quiet).st_mtime - QUIET_SECONDS - 60
    for path in (quiet / "model.safetensors", quiet):
        os.utime(path, (past, past))
    os.utime(fresh, (past, past))
    assert tidied(live, network=True) == Tidied(done=(f"removed {quiet}",), used=(), failed=())
    assert tidied(live).done == (f"removed {fresh}",)
    assert list(tmp_path.iterdir()) == [live]


def test_what_is_mounted_inside_is_not_removed(tmp_path: Path) -> None:
    """Somebody's data, also of the same file system."""
    live = tmp_path / "policy"
    path = left(live)
    with tmpfs(path / "data") as data:
        (data / "precious").touch()
        found = tidied(live)
        assert [error.errno for error in found.failed] == [errno.EBUSY]
        assert (os.listdir(data), sorted(os.listdir(path))) == (["precious"], ["data", "model.safetensors"])
    assert tidied(live).done == (f"removed {path}",)


def test_names_are_as_long_as_there_is_room_for(tmp_path: Path) -> None:
    """Two long ones stay two."""
    names = ["x" * 250 + "a", "x" * 250 + "b", "ä" * 127]
    claims = [Beside(str(tmp_path / name)).make(Role.STAGING) for name in names]
    for name, claim in zip(names, claims, strict=True):
        assert Beside(str(tmp_path / name)).all() == [claim.path]
        claim.release()


def test_a_claim_is_of_the_folder_and_not_of_its_name(tmp_path: Path) -> None:
    """One that was exchanged is another."""
    claim = Beside(str(tmp_path / "policy")).make(Role.STAGING)
    assert claim.is_there()
    assert Claim.take(claim.path) is None
    os.rename(claim.path, tmp_path / "elsewhere")
    os.mkdir(claim.path)
    assert not claim.is_there()
    claim.release()
    claim.release()
    assert not claim.is_there()


def test_somebody_who_removes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that goes between its making and its lock is made again, and not for ever."""
    real, left_over = os.mkdir, [2]

    def mkdir(path: str) -> None:
        real(path)
        if left_over[0]:
            left_over[0] -= 1
            os.rmdir(path)

    monkeypatch.setattr(os, "mkdir", mkdir)
    claim = Beside(str(tmp_path / "policy")).make(Role.STAGING)
    assert claim.is_there()
    claim.release()
    left_over[0] = 1000
    with pytest.raises(OSError, match="as soon as they are made"):
        Beside(str(tmp_path / "policy")).make(Role.STAGING)
