"""Work that may hang, in a thread that nobody waits for longer than he wants to: a dead mount, a slow name service."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Job(Generic[T_co]):
    """Begins at once, in a daemon thread.

    Args:
        function: What to do.
        name: Of the thread.
    """

    def __init__(self, function: Callable[[], T_co], name: str) -> None:
        self._function = function
        self._done = threading.Event()
        self._results: list[T_co] = []
        self._error: Exception | None = None
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def result(self, seconds: float) -> T_co:
        """What it returned.

        Args:
            seconds: Longest wait.

        Raises:
            TimeoutError: It has not ended.
            Exception: What it raised.
        """
        if not self._done.wait(max(0.0, seconds)):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _work(self) -> None:
        try:
            self._results.append(self._function())
        except Exception as error:
            self._error = error
        finally:
            self._done.set()


def outcome(job: Job[T_co], seconds: float) -> tuple[T_co | None, str]:
    """What it brought, or None and why it brought nothing.

    Args:
        seconds: Longest wait.
    """
    try:
        return job.result(seconds), ""
    except TimeoutError:
        return None, "it does not answer: whoever looks at it hangs"
    except Exception as error:
        return None, f"it cannot be looked at: {type(error).__name__}: {error}"
