"""A checkpoint is published in one step, whatever the file system can, and whatever dies in the middle."""

import errno
import mmap
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_telemetry.remedies.publish import Publisher, has_weights
from sglang_telemetry.remedies.rename import Swap, exchange
from tests.harness.mounts import fill, read_only, tmpfs
from tests.harness.processes import wait_until


def no_exchange(a: str, b: str) -> None:
    """What NFS says."""
    raise OSError(errno.EINVAL, "Invalid argument")


SWAPS = pytest.mark.parametrize("swap", [exchange, no_exchange])


def write(folder: str | Path, generation: int, *, files: int = 3) -> None:
    """A checkpoint of which each file says its generation."""
    Path(folder).mkdir(exist_ok=True)
    for number in range(files):
        (Path(folder) / f"model-{number}.safetensors").write_text(str(generation) * 1000)


def generations(folder: Path) -> set[str]:
    """Those that the files of a checkpoint are of."""
    return {path.read_text()[0] for path in folder.glob("*.safetensors")}


def publish(publisher: Publisher) -> str:
    """As in a sync of which nothing more is saved."""
    words, written = publisher.publish(), publisher._path
    publisher.finish()
    wait_until(lambda: written is not None and not os.path.exists(written), "what was written there is gone")
    return words


def beside(folder: Path) -> list[str]:
    """What lies there but the checkpoint."""
    return sorted(one.name for one in folder.parent.iterdir() if one != folder)


@SWAPS
@pytest.mark.parametrize("there", [False, True])
def test_published(there: bool, swap: Swap, tmp_path: Path) -> None:
    """The new files are there and the old ones are not; the old folder goes when the server has the new one."""
    live = tmp_path / "policy"
    if there:
        write(live, 1, files=5)
        live.chmod(0o2750)
    publisher = Publisher(live, swap=swap)
    staging = publisher.begin()
    assert Path(staging).parent == tmp_path
    write(staging, 2)
    publish(publisher)
    assert (generations(live), len(list(live.iterdir()))) == ({"2"}, 3)
    assert bool(beside(live)) is there
    publisher.confirmed()
    publisher.close(10.0)
    assert beside(live) == []
    if there:
        assert live.stat().st_mode & 0o7777 == 0o2750


def test_an_old_folder_goes_at_the_latest_with_the_next_sync(tmp_path: Path) -> None:
    """A server that timed out may still read from it."""
    live = tmp_path / "policy"
    publisher = Publisher(live)
    for generation in (1, 2, 3):
        write(publisher.begin(), generation)
        publish(publisher)
        assert len(beside(live)) == (generation > 1)
    assert generations(live) == {"3"}


def test_what_is_not_written_again_is_kept(tmp_path: Path) -> None:
    """But for weights where new ones are: stale shards would be loaded beside them."""
    live = tmp_path / "policy"
    (live / "sub").mkdir(parents=True)
    for name in ("chat_template.jinja", "sub/merges.txt", "config.json", "old.safetensors", "x.safetensors.index.json"):
        (live / name).write_text("old")
    (live / "link").symlink_to("config.json")
    (live / "folder").symlink_to("sub")
    (live / "checkpoint-500").mkdir()
    (live / "checkpoint-500" / "model.safetensors").write_text("old")
    publisher = Publisher(live)
    staging = Path(publisher.begin())
    (staging / "config.json").write_text("new")
    (staging / "model.safetensors").write_text("new")
    assert publish(publisher).endswith("5 files kept")
    assert (live / "folder" / "merges.txt").exists()
    found = {str(one.relative_to(live)): one.read_text() for one in live.rglob("*") if one.is_file()}
    assert found == {
        "chat_template.jinja": "old",
        "sub/merges.txt": "old",
        "checkpoint-500/model.safetensors": "old",
        "config.json": "new",
        "link": "new",
        "model.safetensors": "new",
    }


@pytest.mark.parametrize("kind", ["absolute", "relative", "chain", "dangling"])
def test_a_symbolic_link_stays(kind: str, tmp_path: Path) -> None:
    """What it leads to is exchanged."""
    real = tmp_path / "disk" / "policy"
    real.parent.mkdir()
    link = tmp_path / "link"
    link.symlink_to("disk/policy" if kind == "relative" else real)
    if kind == "chain":
        (tmp_path / "second").symlink_to("link")
        link = tmp_path / "second"
    if kind != "dangling":
        write(real, 1)
    publisher = Publisher(link)
    staging = publisher.begin()
    write(staging, 2)
    publish(publisher)
    publisher.confirmed()
    publisher.close(10.0)
    assert link.is_symlink()
    assert generations(link) == {"2"}
    assert beside(real) == []


def test_no_reader_sees_half_of_it(tmp_path: Path) -> None:
    """Whoever opens the folder reads one generation, of which each file is there."""
    live = tmp_path / "policy"
    write(live, 0)
    seen: list[tuple[int, set[str]]] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            folder = os.open(live, os.O_RDONLY | os.O_DIRECTORY)
            try:
                names = sorted(os.listdir(folder))
                texts = set()
                for name in names:
                    fd = os.open(name, os.O_RDONLY, dir_fd=folder)
                    texts.add(os.read(fd, 1).decode())
                    os.close(fd)
                # One that is not there any more has been removed, as it is when the server has the new one.
                if os.path.samestat(os.fstat(folder), os.stat(live)):
                    seen.append((len(names), texts))
            except FileNotFoundError:
                continue
            finally:
                os.close(folder)

    thread = threading.Thread(target=read)
    thread.start()
    publisher = Publisher(live)
    for generation in range(1, 10):
        staging = publisher.begin()
        write(staging, generation)
        publish(publisher)
        count = len(seen)
        wait_until(lambda before=count: len(seen) > before, "it was read")  # type: ignore[misc]
    over.set()
    thread.join()
    assert len(seen) >= 9
    assert {(count, len(texts)) for count, texts in seen} == {(3, 1)}


STEPS = ("chmod", "chown", "fsync", "link", "listdir", "mkdir", "open", "rename", "rmdir", "scandir", "stat", "unlink")


def die_at(step: int, live: Path, swap: Swap) -> bool:
    """A whole sync in a child that is killed before its n-th call into the file system; was there one?"""
    child = os.fork()
    if not child:
        try:
            _sync(step, live, swap)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _sync(step: int, live: Path, swap: Swap) -> None:
    calls = iter(range(1_000_000))

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **names: Any) -> Any:
            if next(calls) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **names)

        return call

    publisher = Publisher(live, swap=counted(swap))
    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))
    write(publisher.begin(), 2)
    publish(publisher)
    publisher.confirmed()
    publisher.close(None)


@SWAPS
def test_whoever_dies_in_the_middle_leaves_one_checkpoint(swap: Swap, tmp_path: Path) -> None:
    """Killed at each step of a sync: the next start removes what is left, and the folder holds one that is whole."""
    seen: list[str] = []
    put_back = step = 0
    while True:
        live = tmp_path / str(step) / "policy"
        (live / "sub").mkdir(parents=True)
        write(live, 1)
        (live / "sub" / "merges.txt").touch()
        killed = die_at(step, live, swap)
        publisher = Publisher(live, swap=swap)
        left = beside(live)
        said = publisher.recover()
        assert (beside(live), bool(said)) == ([], bool(left)), (step, left, said)
        assert (len(list(live.iterdir())), (live / "sub" / "merges.txt").exists()) == (4, True), step
        (found,) = generations(live)
        seen.append(found)
        put_back += "put back" in str(said)
        assert publisher.recover() is None
        if not killed:
            break
        step += 1
    assert seen == sorted(seen)
    assert (set(seen), seen[-1], step > 50) == ({"1", "2"}, "2", True)
    assert bool(put_back) is (swap is no_exchange)


def test_whoever_dies_in_the_first_sync_leaves_nothing(tmp_path: Path) -> None:
    """There was no folder before."""
    step, seen = 0, []
    while True:
        live = tmp_path / str(step) / "policy"
        live.parent.mkdir()
        killed = die_at(step, live, exchange)
        Publisher(live).recover()
        assert beside(live) == []
        seen.append(sorted(generations(live)) if live.exists() else [])
        if not killed:
            break
        step += 1
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ([], ["2"])


def test_what_a_living_process_uses_is_left_alone(tmp_path: Path) -> None:
    """Two trainers that save to one folder: the second one is told."""
    live = tmp_path / "policy"
    first, second = Publisher(live), Publisher(live)
    staging = first.begin()
    write(staging, 1)
    assert second.recover() is None
    with pytest.raises(OSError, match="another process writes this checkpoint") as raised:
        second.begin()
    assert raised.value.errno == errno.EBUSY
    publish(first)
    assert generations(live) == {"1"}
    first.close()
    assert second.recover() is None
    assert os.listdir(second.begin()) == []


def test_one_of_many_that_begin_at_once(tmp_path: Path) -> None:
    """Never two of them, and what they publish is whole."""
    live = tmp_path / "policy"
    write(live, 0)
    begun: list[int] = []
    most: list[int] = []
    errors: list[str] = []

    def work(number: int) -> None:
        publisher = Publisher(live)
        done = 0
        while done < 5:
            try:
                staging = publisher.begin()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    errors.append(repr(error))
                    return
                continue
            begun.append(number)
            most.append(len(begun))
            write(staging, number)
            begun.remove(number)
            publish(publisher)
            publisher.confirmed()
            publisher.close(None)
            done += 1
        publisher.close(None)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (errors, set(most)) == ([], {1})
    assert (len(generations(live)), len(list(live.iterdir())), beside(live)) == (1, 3, [])


def test_another_thread_of_this_process(tmp_path: Path) -> None:
    """Its save is not taken away; one that nobody ended is, by the thread that began it."""
    publisher = Publisher(tmp_path / "policy")
    first = publisher.begin()
    raised: list[OSError] = []

    def second() -> None:
        try:
            publisher.begin()
        except OSError as error:
            raised.append(error)

    thread = threading.Thread(target=second)
    thread.start()
    thread.join()
    assert [(one.errno, one.filename) for one in raised] == [(errno.EBUSY, first)]
    again = publisher.begin()
    assert beside(tmp_path / "policy") == [Path(again).name]


def test_a_child_that_was_forked_has_nothing(tmp_path: Path) -> None:
    """A data loader takes nothing away, and one that outlives the trainer does not keep its lock."""
    live = tmp_path / "policy"
    first = Publisher(live)
    staging = first.begin()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        first.finish()
        first.confirmed()
        first.close()
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    assert Publisher(live).recover() is None
    assert os.path.isdir(staging)
    first.close()
    assert str(Publisher(live).recover()) == f"removed {staging}"
    os.close(writing)
    os.waitpid(child, 0)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """What was there is still there, and can be replaced once there is room."""
    with tmpfs(tmp_path / "small", size="256k") as where:
        live = where / "policy"
        write(live, 1)
        (live / "kept.json").write_text("kept")
        publisher = Publisher(live, swap=no_exchange)
        staging = publisher.begin()
        ballast = fill(where)
        with pytest.raises(OSError, match="No space left"):
            write(staging, 2)
        publisher.finish()
        publisher.close(10.0)
        assert generations(live) == {"1"}
        assert beside(live) == ["ballast"]
        ballast.unlink()
        write(publisher.begin(), 2)
        publish(publisher)
        assert generations(live) == {"2"}


def test_no_room_for_what_is_kept(tmp_path: Path) -> None:
    """A hard link takes an inode of a tmpfs: there are none in the middle of it."""
    with tmpfs(tmp_path / "small", size="256k,nr_inodes=24") as where:
        live = where / "policy"
        write(live, 1)
        for number in range(8):
            (live / f"{number}.json").write_text("kept")
        publisher = Publisher(live)
        write(publisher.begin(), 2)
        with pytest.raises(OSError, match="No space left"):
            while True:  # the trial of the constructor and the staging folder had their inodes
                (where / f"ballast-{len(os.listdir(where))}").touch()
        (where / "ballast-2").unlink()
        with pytest.raises(OSError, match="No space left"):
            publish(publisher)
        assert (generations(live), len(list(live.iterdir()))) == ({"1"}, 11)
        publisher.finish()
        publisher.close(None)
        assert [name for name in beside(live) if not name.startswith("ballast")] == []


def test_what_cannot_be_exchanged_is_refused(tmp_path: Path) -> None:
    """At once, with the reason; nothing is left of the trial."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        Publisher(tmp_path / "file")
    with pytest.raises(ValueError, match="is not there; make it"):
        Publisher(tmp_path / "nowhere" / "policy")
    with tmpfs(tmp_path / "mounted") as where:
        with pytest.raises(ValueError, match="is a mount point, which cannot be renamed; let the engine save into"):
            Publisher(where)
        Publisher(where / "policy")
    (tmp_path / "bound").mkdir()
    with read_only(tmp_path / "bound"):
        with pytest.raises(ValueError, match="is a mount point"):
            Publisher(tmp_path / "bound")
        with pytest.raises(ValueError, match=r"cannot be made and renamed in .* \(Read-only file system\)"):
            Publisher(tmp_path / "bound" / "policy")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bound", "file", "mounted"]


@SWAPS
def test_on_a_network_file_system_the_old_one_is_gone_before_the_request(swap: Swap, tmp_path: Path) -> None:
    """Another host may know it by its handle, and would load old weights from it without a word."""
    live = tmp_path / "policy"
    write(live, 1)
    publisher = Publisher(live, swap=swap, fs_type=lambda path: "nfs4")
    handle = os.open(live, os.O_RDONLY | os.O_DIRECTORY)
    write(publisher.begin(), 2)
    assert publish(publisher).endswith("the old one removed")
    assert os.listdir(handle) == []
    os.close(handle)
    assert beside(live) == []


@pytest.mark.parametrize("name", ["with\nnewline", "späße", os.fsdecode(b"no\xffutf8"), "a b"])
def test_odd_names(name: str, tmp_path: Path) -> None:
    """Any name that a folder can have."""
    live = tmp_path / name
    write(live, 1)
    publisher = Publisher(live)
    write(publisher.begin(), 2)
    publish(publisher)
    publisher.confirmed()
    publisher.close(10.0)
    assert generations(live) == {"2"}
    assert beside(live) == []


def test_what_somebody_else_writes_meanwhile_is_kept(tmp_path: Path) -> None:
    """Between the listing of the old folder and the exchange."""
    live = tmp_path / "policy"
    write(live, 1)

    def late(a: str, b: str) -> None:
        if b == str(live):
            (live / "late.json").write_text("late")
        exchange(a, b)

    publisher = Publisher(live, swap=late)
    write(publisher.begin(), 2)
    assert publish(publisher) == "exchanged, 1 files kept"
    assert (live / "late.json").read_text() == "late"


def test_nothing_or_no_weights_were_saved(tmp_path: Path) -> None:
    """The folder would have none."""
    live = tmp_path / "policy"
    write(live, 1)
    publisher = Publisher(live)
    with pytest.raises(OSError, match="nothing is being saved"):
        publish(publisher)
    staging = Path(publisher.begin())
    (staging / "config.json").touch()
    assert not has_weights(str(staging))
    with pytest.raises(OSError, match="no weights were saved"):
        publish(publisher)
    (staging / "config.json").unlink()
    staging.rmdir()
    with pytest.raises(OSError, match="the folder that was saved into is gone"):
        publish(publisher)
    publisher.finish()
    publisher.close(None)
    assert (generations(live), beside(live)) == ({"1"}, [])


def test_an_engine_that_makes_the_folder_anew(tmp_path: Path) -> None:
    """It removes what is there before it saves: the folder that it makes is published, and is not a leftover."""
    live = tmp_path / "policy"
    write(live, 1)
    live.chmod(0o2750)
    publisher = Publisher(live)
    staging = Path(publisher.begin())
    staging.rmdir()
    write(staging, 2)
    publish(publisher)
    assert (generations(live), live.stat().st_mode & 0o7777) == ({"2"}, 0o2750)
    publisher.confirmed()
    publisher.close(None)
    assert beside(live) == []


def test_links_that_the_engine_saves(tmp_path: Path) -> None:
    """By the whole path of the staging folder they would lead to the old weights."""
    live = tmp_path / "policy"
    write(live, 1)
    publisher = Publisher(live)
    staging = Path(publisher.begin())
    write(staging / "blobs", 2)
    for number in range(3):
        (staging / f"model-{number}.safetensors").symlink_to(staging / "blobs" / f"model-{number}.safetensors")
    publish(publisher)
    assert generations(live) == {"2"}
    publisher.confirmed()
    publisher.close(None)
    assert generations(live) == {"2"}


def test_a_link_that_is_led_elsewhere(tmp_path: Path) -> None:
    """Before a save its new folder is the one; during a save nothing is published."""
    for name in ("a", "b"):
        write(tmp_path / name, 1)
    link = tmp_path / "link"
    link.symlink_to("a")
    publisher = Publisher(link)
    link.unlink()
    link.symlink_to("b")
    write(publisher.begin(), 2)
    publish(publisher)
    assert (generations(tmp_path / "a"), generations(tmp_path / "b")) == ({"1"}, {"2"})
    write(publisher.begin(), 3)
    link.unlink()
    link.symlink_to("a")
    with pytest.raises(OSError, match="leads to another folder than when the save began"):
        publish(publisher)
    assert (generations(tmp_path / "a"), generations(tmp_path / "b")) == ({"1"}, {"2"})


def test_folders_that_vanish(tmp_path: Path) -> None:
    """The old one is not missed; without the one above there is an error, and no other."""
    above = tmp_path / "above"
    above.mkdir()
    live = above / "policy"
    write(live, 1)
    publisher = Publisher(live)
    write(publisher.begin(), 2)
    live.rename(tmp_path / "elsewhere")
    assert publish(publisher) == "the first one"
    assert generations(live) == {"2"}
    publisher.begin()
    above.rename(tmp_path / "gone")
    for step in (publisher.publish, publisher.begin):
        with pytest.raises(OSError):
            step()
    assert "No such file or directory" in str(publisher.recover())
    publisher.confirmed()
    publisher.finish()
    publisher.close()


def test_a_reader_that_has_it_mapped(tmp_path: Path) -> None:
    """It reads on what it began to read, also when the folder has gone."""
    live = tmp_path / "policy"
    write(live, 1)
    with (live / "model-0.safetensors").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    publisher = Publisher(live)
    write(publisher.begin(), 2)
    publish(publisher)
    publisher.confirmed()
    publisher.close(None)
    assert (set(mapped[:]), generations(live)) == (set(b"1"), {"2"})
    mapped.close()


def test_a_parent_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exchange has been made: from there on nothing is an error."""
    live = tmp_path / "policy"
    write(live, 1)
    publisher = Publisher(live)
    write(publisher.begin(), 2)
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == str(tmp_path):
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    assert publish(publisher) == "exchanged"
    assert generations(live) == {"2"}


def test_a_file_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not published: it may be lost at the next power cut."""
    live = tmp_path / "policy"
    write(live, 1)
    publisher = Publisher(live)
    write(publisher.begin(), 2)

    def fsync(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        publish(publisher)
    assert generations(live) == {"1"}


def test_where_no_thread_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of the interpreter: the next sync removes it."""
    live = tmp_path / "policy"
    publisher = Publisher(live)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    publisher.begin()
    publisher.finish()
    assert len(beside(live)) == 1
    publisher.begin()
    assert len(beside(live)) == 1


def test_an_unknown_file_system_is_taken_for_one_of_a_network(tmp_path: Path) -> None:
    """A load that fails is seen, and one of old weights is not."""
    live = tmp_path / "policy"
    write(live, 1)
    publisher = Publisher(live, fs_type=lambda path: None)
    write(publisher.begin(), 2)
    assert publish(publisher) == "exchanged, the old one removed"


def test_what_is_mounted_inside_since(tmp_path: Path) -> None:
    """It would be exchanged away, and removed with the old folder."""
    live = tmp_path / "policy"
    write(live, 1)
    publisher = Publisher(live)
    write(publisher.begin(), 2)
    with tmpfs(live / "data") as data:
        (data / "precious").touch()
        with pytest.raises(OSError, match="inside of it is a mount point"):
            publish(publisher)
        with pytest.raises(OSError, match="inside of it is a mount point"):
            publisher.begin()
        assert os.listdir(data) == ["precious"]
    assert generations(live) == {"1"}
