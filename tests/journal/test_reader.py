"""The reader: whole lines only, each once, from where it stopped."""

from pathlib import Path

import pytest

from sglang_telemetry.events import PhaseStarted
from sglang_telemetry.journal import reader as module
from sglang_telemetry.journal.format import encode
from sglang_telemetry.journal.reader import SegmentReader
from sglang_telemetry.names import Phase
from tests.journal import EVERY_KIND, IDENTITY


def phase(number: int) -> PhaseStarted:
    """An event that can be told from the others."""
    return PhaseStarted(identity=IDENTITY, sequence=number, phase=Phase.SAVE, offset_ns=number)


def append(path: Path, data: bytes) -> None:
    """As a writer does."""
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty segment."""
    path = tmp_path / "x.000001.jsonl"
    path.touch()
    return path


def test_every_kind(path: Path) -> None:
    """All events in their order, and the offset behind the last."""
    append(path, b"".join(map(encode, EVERY_KIND)))
    reader = SegmentReader(path)
    assert list(reader.events()) == list(EVERY_KIND)
    assert (reader.offset, reader.bad_lines, reader.last_error) == (path.stat().st_size, 0, None)
    reader.close()


def test_each_event_once(path: Path) -> None:
    """A second look finds only what was added."""
    reader = SegmentReader(path)
    assert list(reader.events()) == []
    append(path, encode(phase(1)))
    assert list(reader.events()) == [phase(1)]
    assert list(reader.events()) == []
    append(path, encode(phase(2)) + encode(phase(3)))
    assert list(reader.events()) == [phase(2), phase(3)]
    reader.close()


def test_goes_on_from_an_offset(path: Path) -> None:
    """As after a restart of whoever reads."""
    first = encode(phase(1))
    append(path, first + encode(phase(2)))
    reader = SegmentReader(path, offset=len(first))
    assert list(reader.events()) == [phase(2)]
    reader.close()


def test_offset_moves_with_each_event(path: Path) -> None:
    """A reader that is stopped in the middle goes on behind the last event that was taken."""
    append(path, b"".join(encode(phase(number)) for number in range(3)))
    reader = SegmentReader(path)
    assert next(reader.events()) == phase(0)
    assert reader.offset == len(encode(phase(0)))
    assert list(reader.events()) == [phase(1), phase(2)]
    reader.close()


def test_line_that_is_being_written_is_left_for_later(path: Path) -> None:
    """Half a line is no bad line; it is read when its other half is there."""
    line = encode(phase(1))
    reader = SegmentReader(path)
    for at in range(len(line) - 1):
        append(path, line[at : at + 1])
        assert list(reader.events()) == []
    append(path, line[-1:])
    assert list(reader.events()) == [phase(1)]
    assert reader.bad_lines == 0
    reader.close()


def test_torn_last_line(path: Path) -> None:
    """The writer is dead: its last half line is counted as bad, once, and passed over."""
    append(path, encode(phase(1)) + encode(phase(2))[:-30])
    reader = SegmentReader(path)
    assert list(reader.events()) == [phase(1)]
    assert reader.bad_lines == 0
    assert list(reader.events(to_end_of_file=True)) == []
    assert (reader.bad_lines, reader.offset) == (1, path.stat().st_size)
    assert list(reader.events(to_end_of_file=True)) == []
    assert reader.bad_lines == 1
    reader.close()


def test_last_line_without_its_newline_alone(path: Path) -> None:
    """Only the newline is missing: the event is whole, and counts."""
    append(path, encode(phase(1)).rstrip())
    reader = SegmentReader(path)
    assert list(reader.events(to_end_of_file=True)) == [phase(1)]
    assert reader.bad_lines == 0
    reader.close()


def test_garbage_between_good_lines(path: Path) -> None:
    """Each bad line is counted; the good ones around it are read."""
    garbage = b"\xff\xfe\n" + b"{}\n" + b'{"v": "2.0", "event": "sync_record"}\n' + b"[" * 50_000 + b"\n"
    append(path, encode(phase(1)) + garbage + encode(phase(2)))
    reader = SegmentReader(path)
    assert list(reader.events()) == [phase(1), phase(2)]
    assert reader.bad_lines == 4
    assert reader.last_error is not None
    assert 0 < len(reader.last_error) <= 200
    reader.close()


def test_holes_and_empty_lines_are_nothing(path: Path) -> None:
    """A file system that crashed leaves zeros, and a writer that recovered an empty line."""
    append(path, b"\n\n" + b"\0" * 4096 + b"\n  \r\n" + encode(phase(1)))
    reader = SegmentReader(path)
    assert list(reader.events()) == [phase(1)]
    assert reader.bad_lines == 0
    reader.close()


def test_unknown_kind_is_passed_over(path: Path) -> None:
    """The offset moves on behind an event that only newer versions know."""
    append(path, b'{"v": "1.9", "event": "from_the_future"}\n' + encode(phase(1)))
    reader = SegmentReader(path)
    assert list(reader.events()) == [phase(1)]
    assert (reader.bad_lines, reader.offset) == (0, path.stat().st_size)
    reader.close()


@pytest.mark.parametrize("chunk", [1, 7, 64, 4096])
def test_lines_across_chunks(path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is read at a time changes nothing."""
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk)
    append(path, b"".join(map(encode, EVERY_KIND)) + b"{torn")
    reader = SegmentReader(path)
    assert list(reader.events()) == list(EVERY_KIND)
    assert reader.offset == path.stat().st_size - len(b"{torn")
    reader.close()


def test_line_without_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded: what is far too long is given up, and what comes behind it is read."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 1024)
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 4096)
    append(path, encode(phase(1)) + b"x" * 20_000)
    reader = SegmentReader(path)
    assert list(reader.events()) == [phase(1)]
    assert reader.bad_lines > 0
    append(path, b"\n" + encode(phase(2)))
    assert list(reader.events()) == [phase(2)]
    reader.close()


def test_file_that_is_removed_is_read_to_its_end(path: Path) -> None:
    """The open file outlives its name."""
    append(path, encode(phase(1)))
    reader = SegmentReader(path)
    path.unlink()
    assert list(reader.events()) == [phase(1)]
    assert reader.modified_at() > 0
    reader.close()


def test_file_that_is_not_there(tmp_path: Path) -> None:
    """It is said so at once."""
    with pytest.raises(FileNotFoundError):
        SegmentReader(tmp_path / "gone.jsonl")
