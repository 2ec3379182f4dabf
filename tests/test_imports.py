"""Who may import whom, and that the exporter and the command line start without torch."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_telemetry

PACKAGE = "sglang_telemetry"
ROOT = Path(sglang_telemetry.__file__).parent

# What each room may import of ours; a room is a folder, or a module that lies in the package itself.
FOUNDATIONS = {"names", "causes", "events", "text", "timeline", "platform", "tags", "trace_ids", "version"}
ALLOWED: dict[str, set[str]] = {
    "names": set(),
    "causes": set(),
    "text": set(),
    "platform": set(),
    "version": set(),
    "events": {"names", "causes"},
    "timeline": {"names", "events"},
    "tags": {"events"},
    "trace_ids": {"events"},
    "spans": {"names", "causes", "events", "trace_ids"},
    "classify": FOUNDATIONS,
    "checkpoint": FOUNDATIONS,
    "codec": FOUNDATIONS,
    "identity": FOUNDATIONS,
    "remedies": FOUNDATIONS | {"checkpoint"},
    "instrument": FOUNDATIONS | {"checkpoint", "identity", "classify", "remedies"},
    "journal": FOUNDATIONS | {"codec"},
    "sinks": FOUNDATIONS | {"codec", "journal", "spans"},
    "server_truth": FOUNDATIONS | {"checkpoint"},
    "exporter": FOUNDATIONS | {"codec", "journal", "sinks", "server_truth"},
    "preflight": FOUNDATIONS | {"server_truth", "checkpoint"},
    "testing": FOUNDATIONS | {"journal", "spans"},
    "telemetry": FOUNDATIONS
    | {"checkpoint", "identity", "instrument", "journal", "preflight", "remedies", "server_truth", "sinks"},
    "otel": {"names", "instrument", "telemetry", "sinks", "exporter", "journal"},
    "assets": {"names"},
    "cli": FOUNDATIONS
    | {"assets", "checkpoint", "exporter", "identity", "journal", "preflight", "server_truth", "sinks", "spans"},
    "__init__": {"names", "causes", "events", "remedies", "sinks", "telemetry"},
    "__main__": {"cli"},
}


def modules() -> list[Path]:
    """All modules of the package."""
    return sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    """The folder, or the module's own name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imports(path: Path, *, of: ast.AST | None = None) -> set[str]:
    """Dotted names of all modules that are imported anywhere in a module, inside of functions too."""
    found: set[str] = set()
    for node in ast.walk(of or ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == PACKAGE else {module}
    return found


def ours(path: Path) -> set[str]:
    """Rooms of ours that a module imports, but its own."""
    dotted = [name.split(".") for name in imports(path)]
    rooms = {parts[1] for parts in dotted if parts[0] == PACKAGE and len(parts) > 1} - {room_of(path)}
    return {room for room in rooms if (ROOT / room).is_dir() or (ROOT / f"{room}.py").exists()}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows(path: Path) -> None:
    """A room imports what it may, and nothing else."""
    assert ours(path) <= ALLOWED[room_of(path)]


def test_every_room_has_its_arrows() -> None:
    """A room that is added says whom it imports; one that goes takes its entry along."""
    assert {room_of(path) for path in modules()} == set(ALLOWED)


@pytest.mark.parametrize(
    ("room", "never"),
    [
        ("instrument", {"sinks", "exporter", "journal", "cli", "telemetry", "testing"}),
        ("sinks", {"instrument", "exporter", "cli", "telemetry", "testing"}),
        ("remedies", {"instrument", "sinks", "exporter", "journal", "cli", "telemetry", "testing"}),
        ("journal", {"instrument", "sinks", "exporter", "cli", "telemetry"}),
        ("exporter", {"instrument", "cli", "telemetry", "testing"}),
        ("server_truth", {"instrument", "cli", "telemetry", "testing", "sinks", "exporter"}),
    ],
)
def test_rooms_that_never_meet(room: str, never: set[str]) -> None:
    """The arrows that matter most, said the other way round."""
    for path in (path for path in modules() if room_of(path) == room):
        assert not ours(path) & never, path


def test_only_the_composer_knows_both_sides() -> None:
    """One module puts instrument and sinks together, and OpenTelemetry's loader does it without a line of code."""
    both = {room_of(path) for path in modules() if {"instrument", "sinks"} <= ours(path)}
    assert both == {"telemetry", "otel"}


def test_the_graph_has_no_circle() -> None:
    """Rooms can be read from the bottom up."""
    graph = {room: {one for path in modules() if room_of(path) == room for one in ours(path)} for room in ALLOWED}
    while graph:
        free = {room for room, needs in graph.items() if not needs & graph.keys()}
        assert free, f"a circle among {sorted(graph)}"
        graph = {room: needs for room, needs in graph.items() if room not in free}


def test_torch_is_nowhere_imported_but_in_instrument_and_never_at_once() -> None:
    """Importing it costs seconds and gigabytes: only inside of a function, and only where tensors are touched."""
    for path in modules():
        tree = ast.parse(path.read_text())
        if room_of(path) != "instrument":
            assert not {name for name in imports(path) if name.split(".")[0] == "torch"}, path
        at_once = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
        for node in at_once:
            assert not {name for name in imports(path, of=node) if name.split(".")[0] == "torch"}, path


@pytest.mark.parametrize(
    "code",
    [
        "import sglang_telemetry.cli.main, sglang_telemetry.exporter.app, sys; assert 'torch' not in sys.modules",
        "import sglang_telemetry, sys; assert not {'torch', 'prometheus_client', 'http.server'} & sys.modules.keys()",
        "import sglang_telemetry, sys; assert not [name for name in sys.modules if name.startswith('opentelemetry')]",
        "import sglang_telemetry.sinks.journal, sys; assert 'torch' not in sys.modules",
    ],
)
def test_starts_without(code: str) -> None:
    """The exporter and the command line need no torch, the trainer no metrics library."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_public_names() -> None:
    """Sorted, without doubles, and each of them is there."""
    names = sglang_telemetry.__all__
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(sglang_telemetry, name)] == []


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    """A docstring, and a module that can be imported."""
    assert ast.get_docstring(ast.parse(path.read_text()))
    if path.stem != "__main__":
        dotted = ".".join((PACKAGE, *path.relative_to(ROOT).with_suffix("").parts))
        importlib.import_module(dotted.removesuffix(".__init__"))
