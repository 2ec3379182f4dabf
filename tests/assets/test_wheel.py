"""The wheel as a user gets it: built, installed into an empty folder, and run far away from the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.harness.processes import output_of

ROOT = Path(__file__).parents[2]
KINDS = ("rules", "alertmanager", "runbooks", "dashboards")


def python(*arguments: str, where: Path, path: str = "") -> str:
    """Output of an interpreter, which has to be content."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        cwd=where,
        env=environment | ({"PYTHONPATH": path} if path else {}),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout, with what is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
    )
    python(*pip, "--wheel-dir", str(folder), str(ROOT), where=folder)
    [built] = folder.glob("*.whl")
    return built


def written(kind: str) -> dict[str, bytes]:
    """The files of the repository, by their path in an export."""
    top = ROOT / "dashboards" if kind == "dashboards" else ROOT / "alerts" / kind
    endings = {"dashboards": {".json", ".yml"}, "runbooks": {".md"}}.get(kind, {".yml", ".tmpl"})
    found = (path for path in top.rglob("*") if path.is_file() and path.suffix in endings)
    return {f"{kind}/{path.relative_to(top)}": path.read_bytes() for path in found}


@pytest.mark.parametrize("kind", KINDS)
def test_data_is_that_of_the_repository(wheel: Path, kind: str) -> None:
    """All of it, byte for byte: a folder that pyproject.toml forgets is seen here."""
    with zipfile.ZipFile(wheel) as archive:
        prefix = "sglang_telemetry/_assets/"
        found = {
            name.removeprefix(prefix): archive.read(name)
            for name in archive.namelist()
            if name.startswith(f"{prefix}{kind}/")
        }
    assert found == written(kind)


def test_installed_and_run(wheel: Path, tmp_path: Path) -> None:
    """The export of the installed package is the repository's files; the tools take them."""
    target, out = tmp_path / "site", tmp_path / "out"
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
    python(*pip, "--target", str(target), str(wheel), where=tmp_path)
    where = python("-c", "import sglang_telemetry; print(sglang_telemetry.__file__)", where=tmp_path, path=str(target))
    assert where.startswith(str(target))
    said = python("-m", "sglang_telemetry", "assets", "export", "out", where=tmp_path, path=str(target))
    found = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert found == {path: data for kind in KINDS for path, data in written(kind).items()}
    assert said.splitlines()[-1] == f"assets ok: {len(found)} files written to {out}"
    output_of("promtool", "check", "rules", *(str(path) for path in sorted((out / "rules").glob("*.yml"))), timeout=60)
    output_of("amtool", "check-config", str(out / "alertmanager" / "alertmanager.yml"), timeout=60)
