"""Who speaks: from arguments, then the environment, then the process group; and one run id for all ranks of a start."""

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from sglang_telemetry import identity as rooms
from sglang_telemetry.identity import IdentitySource, _agree
from sglang_telemetry.platform import started_at

KEY = "sglang_telemetry/run_id/0"


def group(store: Any, rank: int = 0, world_size: int = 2) -> Any:
    """A process group that is up, with a store."""
    return SimpleNamespace(
        distributed_c10d=SimpleNamespace(_get_default_store=lambda: store),
        get_rank=lambda: rank,
        get_world_size=lambda: world_size,
    )


@pytest.mark.parametrize(
    ("arguments", "environ", "up", "expected"),
    [
        ({}, {}, None, (0, 1)),
        ({}, {"RANK": "3", "WORLD_SIZE": "8"}, None, (3, 8)),
        ({"rank": 0, "world_size": 4}, {"RANK": "3", "WORLD_SIZE": "8"}, (1, 2), (0, 4)),
        ({}, {}, (1, 2), (1, 2)),
        ({"rank": 5}, {}, None, (5, 6)),
        ({}, {"RANK": "0", "WORLD_SIZE": "2"}, (1, 2), (0, 2)),
        ({}, {"RANK": "tcp://10.0.0.1:80", "WORLD_SIZE": ""}, None, (0, 1)),
    ],
)
def test_rank_and_world_size(
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, int],
    environ: dict[str, str],
    up: tuple[int, int] | None,
    expected: tuple[int, int],
) -> None:
    """Arguments win over the environment, that over the process group; rank 0 is a rank like any other."""
    process_group = group(dist.HashStore(), *up) if up else None
    monkeypatch.setattr(rooms, "process_group", lambda: process_group)
    now = IdentitySource(run="r", environ=environ, **arguments).current()
    assert (now.rank, now.world_size) == expected


def test_run_name() -> None:
    """Argument, environment, script; a label value in any case."""
    assert IdentitySource(run="a", environ={"SGLANG_TELEMETRY_RUN": "b"}).run == "a"
    assert IdentitySource(environ={"SGLANG_TELEMETRY_RUN": "b"}).run == "b"
    assert IdentitySource(run="x\ny\x1b[31m" + "z" * 300, environ={}).run == "x y" + "z" * 117
    assert rooms.script_name("/a/train_grpo.py") == "train_grpo"
    assert rooms.script_name("-c") == "python"


def test_run_id_of_the_job_is_told_apart_by_restarts() -> None:
    """A restart keeps the environment: the id that was given is not enough."""
    given = {"SGLANG_TELEMETRY_RUN_ID": "job-7"}
    assert IdentitySource(run="r", environ=given).current().run_id == "job-7"
    again = given | {"TORCHELASTIC_RESTART_COUNT": "2"}
    assert IdentitySource(run="r", environ=again).current().run_id == "job-7.2"


def test_ranks_agree_through_the_store() -> None:
    """Whoever comes first decides; nobody waits."""
    store = dist.HashStore()
    first = _agree(group(store), "a" * 32, KEY, started_at(os.getpid()))
    second = _agree(group(store, 1), "b" * 32, KEY, started_at(os.getpid()))
    assert (first, second) == ("a" * 32, "a" * 32)


def test_an_earlier_starts_id_is_replaced() -> None:
    """torchrun's store outlives a restart: what was agreed before this process was born is of another start."""
    store = dist.HashStore()
    store.set(KEY, f"{'0' * 32}@{time.time() - 3600:.3f}")
    born = started_at(os.getpid())
    assert _agree(group(store), "a" * 32, KEY, born) == "a" * 32
    assert _agree(group(store, 1), "b" * 32, KEY, born) == "a" * 32


@pytest.mark.parametrize("value", ["garbage", "", "x@y"])
def test_a_store_with_something_else_in_it_is_no_error(value: str) -> None:
    """Then the id is this process's own."""
    store = dist.HashStore()
    store.set(KEY, value)
    assert _agree(group(store), "a" * 32, KEY, 1.0) in {None, "a" * 32}


def test_process_start_is_known() -> None:
    """A moment ago, and not in the future."""
    born = started_at(os.getpid())
    assert born is not None
    assert time.time() - 3600 < born <= time.time() + 0.1
