"""The file system of a folder: from the kernel's own words, and from real mounts."""

import os
from pathlib import Path

import pytest

from sglang_telemetry.checkpoint.filesystem import FolderFacts, facts_of, fs_type_of
from tests.harness.mounts import fill, tmpfs

# Debian's order: what was mounted before the root file system stands before it.
HOST = r"""22 28 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw
24 28 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw,size=8k
26 24 0:22 / /dev/shm rw shared:4 - tmpfs tmpfs rw
28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 28 0:50 / /mnt/nfs rw - nfs4 server:/export rw,vers=4.2
31 30 8:2 / /mnt/nfs/fast rw master:3 propagate_from:2 - xfs /dev/sdb rw
32 28 0:51 / /mnt/with\040space\134 rw - btrfs /dev/sdc rw
33 28 8:3 / /cover/deep rw - xfs /dev/sdd rw
34 28 0:60 / /cover rw - overlay overlay rw
35 28 0:61 / /twice rw - ext4 /dev/sde rw
36 35 0:62 / /twice rw - tmpfs tmpfs rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/me", "ext4"),
        ("/dev/shm/w", "tmpfs"),
        ("/dev/other", "devtmpfs"),
        ("/mnt/nfs", "nfs4"),
        ("/mnt/nfsx", "ext4"),
        ("/mnt/nfs/slow/c", "nfs4"),
        ("/mnt/nfs/fast/c", "xfs"),
        ("/mnt/with space\\/c", "btrfs"),
        ("/cover/deep/c", "overlay"),
        ("/twice/c", "tmpfs"),
    ],
)
def test_type(path: str, kind: str) -> None:
    """The mount that the kernel would walk into: covered ones do not count, wherever they stand in the list."""
    assert fs_type_of(path, HOST) == kind


def test_stacked_roots() -> None:
    """An initial root file system below the real one."""
    assert fs_type_of("/a", "1 0 0:1 / / rw - rootfs rootfs rw\n2 1 8:1 / / rw - ext4 /dev/sda rw\n") == "ext4"


def test_without_a_root() -> None:
    """In a chroot the mount of its root is not listed: the longest prefix."""
    mounts = "40 28 0:5 / /dev rw - devtmpfs udev rw\n41 40 0:6 / /dev/shm rw - tmpfs tmpfs rw\n"
    assert fs_type_of("/dev/shm/a", mounts) == "tmpfs"
    assert fs_type_of("/dev/a", mounts) == "devtmpfs"
    assert fs_type_of("/home", mounts) is None
    assert fs_type_of("/home", "") is None


def test_a_real_tmpfs(tmp_path: Path) -> None:
    """Room, inodes and type; a folder in it that is not there yet has those of where it will be."""
    with tmpfs(tmp_path / "a b", size="1m") as mount:
        facts = facts_of(mount)
        there = os.statvfs(mount)
        assert facts == FolderFacts(free_bytes=1 << 20, free_inodes=there.f_favail, read_only=False, fs_type="tmpfs")
        assert facts_of(mount / "not" / "yet") == facts
        (tmp_path / "link").symlink_to(mount)
        assert facts_of(tmp_path / "link") == facts
        fill(mount)
        assert facts_of(mount).free_bytes == 0


def test_a_read_only_one(tmp_path: Path) -> None:
    """As a volume that was mounted so."""
    with tmpfs(tmp_path / "ro", read_only=True) as mount:
        assert facts_of(mount).read_only is True


def test_without_a_fixed_number_of_inodes() -> None:
    """proc has none, as btrfs: that is unknown and not zero."""
    facts = facts_of("/proc")
    assert (facts.free_inodes, facts.fs_type) == (None, "proc")


@pytest.mark.parametrize("path", ["/tmp/a\0b", "", "/proc/self/fd/99999/x", "relative/nowhere", "/" + "x" * 5000])
def test_odd_paths(path: str) -> None:
    """Nothing raises."""
    assert isinstance(facts_of(path), FolderFacts)


def test_where_the_kernel_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc there is no type, and the rest all the same."""
    monkeypatch.setattr("sglang_telemetry.checkpoint.filesystem._MOUNTS", tmp_path / "nothing")
    facts = facts_of(tmp_path)
    assert facts.fs_type is None
    assert facts.free_bytes is not None
