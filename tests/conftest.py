"""What tests of several rooms share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny checkpoint folders, good and broken ones, made without SGLang's libraries; not to be changed."""
    from tests.testing.checkpoints import write_models  # which imports torch, for those who want it

    return write_models(tmp_path_factory.mktemp("models"))
