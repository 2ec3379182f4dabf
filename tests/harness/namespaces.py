"""Two hosts on one machine: network namespaces with a cable between them, and a host name for each."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

INTERFACE = "veth0"
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_NAMED = 'echo "$0" > /proc/sys/kernel/hostname; exec "$@"'


@dataclass(frozen=True, slots=True)
class Host:
    """One of them: the name of its namespace, which is its host name, and its address on the cable."""

    name: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command is started with to run on this host; the process keeps the pid."""
        return ("ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", _NAMED, self.name)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets that this thread makes in the block are on this host, and stay there."""
        with open("/proc/thread-self/ns/net") as back, open(f"/run/netns/{self.name}") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(back.fileno())


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nobody else; skips the test where namespaces are not allowed.

    At the end whatever runs in them is killed, by its pid.
    """
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: apt-get install iproute2 util-linux")
    hosts = tuple(Host(f"sgt-{os.getpid()}-{end}", f"10.77.0.{end}") for end in (1, 2))
    first, second = hosts
    cable = ("type", "veth", "peer", "name", INTERFACE, "netns", second.name)
    with contextlib.ExitStack() as stack:
        for host in hosts:
            _ip("netns", "add", host.name)
            stack.callback(_remove, host)
        _ip("link", "add", INTERFACE, "netns", first.name, *cable)
        for host in hosts:
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _ip("-n", host.name, "link", "set", interface, "up")
        yield first, second


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"network namespaces are not allowed here: ip {' '.join(arguments)}: {done.stderr.strip()}")


def _remove(host: Host) -> None:
    found = subprocess.run(["ip", "netns", "pids", host.name], capture_output=True, text=True, check=False)
    for pid in map(int, found.stdout.split()):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", host.name], check=False)


def _enter(fd: int) -> None:
    if _LIBC.setns(fd, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
