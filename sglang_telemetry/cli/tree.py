"""The trace of one sync on a terminal: a tree a rank, side by side, each phase with its seconds and its place in time.

Bars are drawn from each rank's own start: hosts' clocks differ, so ranks are compared by durations alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.names import UPDATE_ROUTE, Attribute, Outcome, Phase, SpanName, phase_span
from sglang_telemetry.spans import Span

MAX_RANKS = 8
"""More are told in one line: the ones that matter are shown."""
_BAR = 12
_NAME = 11
_WAITS = {phase_span(Phase.BROADCAST), phase_span(Phase.BARRIER)}
_LONGEST = " ◀"


@dataclass(frozen=True, slots=True)
class _Rank:
    span: Span
    phases: tuple[Span, ...]
    within: tuple[Span, ...]
    """Requests, and what remedies did, in the order of time."""

    @property
    def number(self) -> int:
        return int(self.span.attributes[Attribute.RANK])

    @property
    def cause(self) -> str | None:
        return self.span.error

    @property
    def at_fault(self) -> bool:
        """It failed by itself, and did not only hear of it."""
        return self.cause not in {None, FailureCause.PEER.value}

    @property
    def busy_ns(self) -> int:
        """Its longest phase in which it did not wait for others."""
        return max((one.duration_ns for one in self.phases if one.name not in _WAITS), default=0)


def print_tree(spans: Sequence[Span], console: Console) -> None:
    """Print the trace of one sync.

    Args:
        spans: All of one sync, of one or more ranks.
        console: Where to.
    """
    ranks = _ranks(spans)
    if ranks:
        console.print(_rendered(ranks), soft_wrap=False)


def _rendered(ranks: list[_Rank]) -> RenderableType:
    longest = max(ranks, key=lambda rank: rank.busy_ns)
    whole_ns = max(1, max(rank.span.duration_ns for rank in ranks))
    shown = _worth_showing(ranks, longest)
    trees = [_tree(rank, whole_ns, is_longest=rank is longest) for rank in shown]
    parts: list[RenderableType] = [_headline(ranks, longest), Columns(trees, padding=(0, 3))]
    rest = [rank for rank in ranks if rank not in shown]
    if rest:
        spent = sorted(rank.span.duration_ns for rank in rest)
        parts.append(Text(f"and {len(rest)} more ranks, {_seconds(spent[0])} to {_seconds(spent[-1])} s", style="dim"))
    return Group(*parts)


def _ranks(spans: Sequence[Span]) -> list[_Rank]:
    below: dict[tuple[str, str | None], list[Span]] = {}
    for span in spans:
        below.setdefault((span.trace_id, span.parent_span_id), []).append(span)
    found: dict[int, _Rank] = {}
    for span in spans:
        if span.name == SpanName.RANK:
            phases = tuple(below.get((span.trace_id, span.span_id), ()))
            within = [one for phase in phases for one in below.get((span.trace_id, phase.span_id), ())]
            rank = _Rank(span, phases, tuple(sorted(within, key=lambda one: one.start_ns)))
            if rank.phases or rank.number not in found:  # a span that only stands in for another has no phases
                found[rank.number] = rank
    return [found[number] for number in sorted(found)]


def _worth_showing(ranks: list[_Rank], longest: _Rank) -> list[_Rank]:
    if len(ranks) <= MAX_RANKS:
        return ranks
    first = [rank for rank in ranks if rank is longest or rank.at_fault or rank is ranks[0]][:MAX_RANKS]
    slow = sorted((rank for rank in ranks if rank not in first), key=lambda rank: -rank.span.duration_ns)
    return sorted((*first, *slow[: MAX_RANKS - len(first)]), key=lambda rank: rank.number)


def _headline(ranks: list[_Rank], longest: _Rank) -> Text:
    blamed = next((rank for rank in ranks if rank.at_fault), ranks[0])
    who = blamed.span.attributes
    text = Text()
    text.append(f"{SpanName.SYNC} {who[Attribute.SEQUENCE]}", style="bold")
    text.append(f" of {who[Attribute.RUN]}  ")
    text.append(f"{blamed.cause or who[Attribute.RESULT]}", style="bold red" if blamed.cause else "")
    text.append(f"  {_seconds(max(rank.span.duration_ns for rank in ranks))} s")
    text.append("  ◀ the longest path", style="yellow")
    text.append(f"\ntrace {longest.span.trace_id}", style="dim")
    return text


def _tree(rank: _Rank, whole_ns: int, *, is_longest: bool) -> Tree:
    label = Text(f"rank {rank.number}".ljust(_NAME + 4), style="bold")
    label.append(f"{_seconds(rank.span.duration_ns):>7}")
    label.append(f"  {rank.cause or 'ok'}", style="red" if rank.cause else "green")
    if is_longest:
        label.append(_LONGEST, style="yellow")
    tree = Tree(label, guide_style="dim")
    remedied = {one.parent_span_id for one in rank.within if not one.client}
    shown = [one for one in rank.phases if one.error or one.span_id in remedied or one.duration_ns * 200 >= whole_ns]
    longest = max((one for one in rank.phases if one.name not in _WAITS), key=lambda one: one.duration_ns, default=None)
    for phase in shown:
        marked = is_longest and phase is longest
        branch = tree.add(_line(phase, rank, whole_ns, marked=marked))
        for one in rank.within:
            if one.parent_span_id == phase.span_id:
                branch.add(_request(one, marked=marked) if one.client else _remedy(one))
    return tree


def _line(phase: Span, rank: _Rank, whole_ns: int, *, marked: bool) -> Text:
    waits = phase.name in _WAITS
    text = Text(phase.name.rpartition(".")[2].ljust(_NAME), style="dim" if waits else "")
    text.append(f"{_seconds(phase.duration_ns):>7}  ")
    text.append(_bar(phase, rank, whole_ns), style="red" if phase.error else "dim" if waits else "cyan")
    if phase.attributes.get(Attribute.UNFINISHED):
        text.append(" never ended", style="red")
    if marked:
        text.append(_LONGEST, style="yellow")
    return text


def _request(request: Span, *, marked: bool) -> Text:
    status = request.attributes.get(Attribute.HTTP_STATUS) or request.attributes.get(Attribute.ERROR_TYPE) or "?"
    method, _, route = request.name.partition(" ")
    text = Text(f"{method} " if UPDATE_ROUTE in route else f"{method} {route} ")
    text.append(str(status), style="red" if request.error else "green")
    if marked:
        text.append(_LONGEST, style="yellow")
    return text


def _remedy(remedy: Span) -> Text:
    outcome = remedy.attributes.get(Attribute.REMEDY_OUTCOME)
    text = Text(f"{remedy.name.rpartition('.')[2]} {_seconds(remedy.duration_ns)}")
    if outcome != Outcome.DONE:
        text.append(f" {outcome}", style="red" if remedy.error else "dim")
    return text


def _bar(phase: Span, rank: _Rank, whole_ns: int) -> str:
    begin, end = (round(_BAR * (at - rank.span.start_ns) / whole_ns) for at in (phase.start_ns, phase.end_ns))
    begin = min(begin, _BAR - 1)
    return ("·" * begin + "━" * max(1, end - begin))[:_BAR].ljust(_BAR, "·")


def _seconds(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    return f"{seconds:.{2 if seconds >= 0.1 else 3}f}"
