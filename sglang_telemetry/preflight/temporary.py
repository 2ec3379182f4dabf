"""What a check writes into the shared folder for a moment: no loader of weights looks at such a name."""

import os
import uuid

_PREFIX = ".sglang-telemetry-check-"


def temporary(folder: str) -> str:
    """The path of a file or folder to be made there, which nobody else makes."""
    return os.path.join(folder, f"{_PREFIX}{uuid.uuid4().hex}")
