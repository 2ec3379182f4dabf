"""A checkpoint is published in one step, whatever the file system can, and whatever dies in the middle."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sglang_telemetry.remedies.publish import Publisher
from sglang_telemetry.remedies.rename import exchange
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


def beside(folder: Path) -> list[str]:
    """What lies there but the checkpoint."""
    return sorted(one.name for one in folder.parent.iterdir() if one != folder)


@SWAPS
@pytest.mark.parametrize("there", [False, True])
def test_published(there: bool, swap: object, tmp_path: Path) -> None:
    """The new files are there and the old ones are not; the old folder goes when the server has the new one."""
    live = tmp_path / "policy"
    if there:
        write(live, 1, files=5)
        live.chmod(0o2750)
    publisher = Publisher(live, swap=swap)  # type: ignore[arg-type]
    staging = publisher.begin()
    assert Path(staging).parent == tmp_path
    write(staging, 2)
    publisher.publish()
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
        publisher.publish()
        assert len(beside(live)) == (generation > 1)
    assert generations(live) == {"3"}


def test_what_is_not_written_again_is_kept(tmp_path: Path) -> None:
    """But for weights: stale shards would be loaded beside the new ones."""
    live = tmp_path / "policy"
    (live / "sub").mkdir(parents=True)
    for name in ("chat_template.jinja", "sub/merges.txt", "config.json", "old.safetensors", "x.safetensors.index.json"):
        (live / name).write_text("old")
    (live / "link").symlink_to("config.json")
    publisher = Publisher(live)
    staging = Path(publisher.begin())
    (staging / "config.json").write_text("new")
    (staging / "model.safetensors").write_text("new")
    assert publisher.publish().endswith("3 files kept")
    found = {str(one.relative_to(live)): one.read_text() for one in live.rglob("*") if one.is_file()}
    assert found == {
        "chat_template.jinja": "old",
        "sub/merges.txt": "old",
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
    publisher.publish()
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
                seen.append((len(names), texts))
            except FileNotFoundError:  # the old one has been removed, as it is when the server has the new one
                continue
            finally:
                os.close(folder)

    thread = threading.Thread(target=read)
    thread.start()
    publisher = Publisher(live)
    for generation in range(1, 10):
        staging = publisher.begin()
        write(staging, generation)
        publisher.publish()
        count = len(seen)
        wait_until(lambda before=count: len(seen) > before, "it was read")  # type: ignore[misc]
    over.set()
    thread.join()
    assert len(seen) >= 9
    assert {(count, len(texts)) for count, texts in seen} == {(3, 1)}


KILLED = """
import os, signal, sys
from sglang_telemetry.remedies import publish, rename
step, live, way = sys.argv[1:]
def die(*a, **n): os.kill(os.getpid(), signal.SIGKILL)
def refuse(a, b): raise OSError(22, "Invalid argument")
publisher = publish.Publisher(live, swap=rename.exchange if way == "exchange" else refuse)
staging = publisher.begin()
def write(name): open(os.path.join(staging, name), "w").write("2" * 1000)
write("model-0.safetensors")
if step == "save": die()
for n in (1, 2): write(f"model-{n}.safetensors")
if step == "synced": publish.replace = die
if step == "between":
    renames = []
    real = os.rename
    def second(a, b):
        renames.append(a)
        if len(renames) == 2: die()
        real(a, b)
    rename.os.rename = second
publisher.publish()
if step == "published": die()
publish.shutil.rmtree = lambda path, **n: (os.unlink(os.path.join(path, "model-1.safetensors")), die())
publisher.confirmed()
publisher.close(30)
"""


@pytest.mark.parametrize(
    ("step", "way", "wanted"),
    [
        ("save", "exchange", "1"),
        ("synced", "exchange", "1"),
        ("published", "exchange", "2"),
        ("removal", "exchange", "2"),
        ("save", "renames", "1"),
        ("between", "renames", "1"),
        ("published", "renames", "2"),
        ("removal", "renames", "2"),
    ],
)
def test_whoever_dies_in_the_middle_leaves_one_checkpoint(step: str, way: str, wanted: str, tmp_path: Path) -> None:
    """The next start removes what is left, and the folder holds one that is whole."""
    live = tmp_path / "policy"
    write(live, 1)
    done = subprocess.run([sys.executable, "-c", KILLED, step, str(live), way], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr.decode()
    assert beside(live) != []
    publisher = Publisher(live)
    said = publisher.recover()
    assert said is not None
    assert ("put back" in said) is (step == "between")
    assert beside(live) == []
    assert (generations(live), len(list(live.iterdir()))) == ({wanted}, 3)
    assert publisher.recover() is None


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
    first.publish()
    assert generations(live) == {"1"}
    first.close()
    assert second.begin() == staging


def test_a_child_that_was_forked_keeps_nothing(tmp_path: Path) -> None:
    """A data loader that outlives the trainer does not keep its lock."""
    live = tmp_path / "policy"
    first = Publisher(live)
    first.begin()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    first.close()
    assert Publisher(live).recover() is not None
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
        publisher.abandon()
        publisher.close(10.0)
        assert generations(live) == {"1"}
        assert beside(live) == ["ballast"]
        ballast.unlink()
        write(publisher.begin(), 2)
        publisher.publish()
        assert generations(live) == {"2"}


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
def test_on_a_network_file_system_the_old_one_is_gone_before_the_request(swap: object, tmp_path: Path) -> None:
    """Another host may know it by its handle, and would load old weights from it without a word."""
    live = tmp_path / "policy"
    write(live, 1)
    publisher = Publisher(live, swap=swap, fs_type=lambda path: "nfs4")  # type: ignore[arg-type]
    handle = os.open(live, os.O_RDONLY | os.O_DIRECTORY)
    write(publisher.begin(), 2)
    assert publisher.publish().endswith("the old one removed")
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
    publisher.publish()
    publisher.confirmed()
    publisher.close(10.0)
    assert generations(live) == {"2"}
    assert beside(live) == []
