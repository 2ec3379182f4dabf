"""What a forked child does not inherit: a flock stays as long as any process has its descriptor open.

A data-loader worker that outlives a killed trainer would keep the trainer's locks. So a child closes its copies, which
unlocks nothing for the parent. Children that C code forks without Python's hooks keep them: then a lock stays too long,
and never goes too early.
"""

import contextlib
import functools
import os
import weakref
from typing import Protocol


class Forgets(Protocol):
    """Something that holds descriptors, threads or locks of this process."""

    def forget(self) -> None:
        """Called in a forked child: close, and start anew."""


def forget_in_child(one: Forgets) -> None:
    """Have ``one.forget()`` called in every child that is forked while the object lives."""
    _living().add(one)


# A hook for fork cannot be taken back: one for the process, and not one for each sync.
@functools.cache
def _living() -> "weakref.WeakSet[Forgets]":
    living: weakref.WeakSet[Forgets] = weakref.WeakSet()

    def in_child() -> None:
        for one in tuple(living):
            with contextlib.suppress(Exception):
                one.forget()

    os.register_at_fork(after_in_child=in_child)
    return living
