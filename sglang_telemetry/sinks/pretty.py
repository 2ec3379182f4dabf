"""A log line as a person reads it on a terminal at 3 a.m.: what, where, the server's words, the first thing to do."""

import json
from collections.abc import Mapping
from typing import Any

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.names import LogEvent, Outcome, Phase

_INDENT = " " * 9
_WIDTH = 400
_ABOUT_FILES = frozenset(
    {
        FailureCause.DISK_FULL,
        FailureCause.CHECKPOINT_WRITE,
        FailureCause.SERVER_DIED,
        FailureCause.CHECKPOINT_INVALID,
        FailureCause.PATH_NOT_VISIBLE,
    }
)


def render_pretty(fields: Mapping[str, Any]) -> str:
    """Render one event.

    Args:
        fields: As made in :mod:`sglang_telemetry.sinks.log_fields`, with ``event``, ``level``, ``timestamp``.
    """
    time = str(fields.get("timestamp", ""))[11:19]
    head = f"{time} {str(fields.get('level', '')).upper():<7} {fields.get('event')}"
    event = fields.get("event")
    if event == LogEvent.ENGINE_PRINT:
        return f"{head}  {_where(fields)}\n{_INDENT}engine: {_short(fields.get('text'))}"
    if event == LogEvent.TELEMETRY_ERROR:
        return f"{head}  component={fields.get('component')}  {_short(fields.get('text'))}  ({fields.get('hint')})"
    if event in {LogEvent.SERVER_RESTARTED, LogEvent.SERVER_WENT_BACK}:
        return f"{head}  {fields.get('server')}\n{_INDENT}first:  {fields.get('hint')}"
    if event == LogEvent.SERVER_LEFT_PAUSED:
        return f"{head}  {fields.get('server')}  run={fields.get('run')}\n{_INDENT}first:  {fields.get('hint')}"
    if event in {LogEvent.REMEDY, LogEvent.RETRIED, LogEvent.CONTINUED_STALE}:
        return "\n".join([f"{head}  {_remedied(fields)}  {_where(fields)}", *_grounds(fields)])
    if event in {LogEvent.NOT_APPLIED, LogEvent.RESOLVED, LogEvent.SAME_BYTES}:
        return "\n".join([f"{head}  {_verdict(fields)}  {_where(fields)}", *_grounds(fields)])
    if event == LogEvent.STARTED:
        return f"{head}  {fields.get('server') or '?'}  {_where(fields)}"
    lines = [f"{head}  {_summary(fields)}  {_where(fields)}"]
    if event == LogEvent.FAILED:
        lines += _explanation(fields)
    lines += _remedies(fields)
    lines.append(_phases(fields))
    return "\n".join(lines)


def _summary(fields: Mapping[str, Any]) -> str:
    server = fields.get("server") or "an unknown server"
    if "cause" not in fields:
        size = _bytes(fields.get("checkpoint.bytes"))
        return f"{server} in {fields.get('duration_seconds', 0):.2f} s{f', {size}' if size else ''}"
    parts = [f"cause={fields['cause']}", f"applied={fields.get('weights_applied')}"]
    if fields.get("failed_phase") not in {None, Phase.REQUEST}:  # a request speaks for itself
        parts.append(f"phase={fields['failed_phase']}")
    seconds = f"after {fields.get('request_seconds', fields.get('duration_seconds', 0)):.2f} s"
    if "http.response.status_code" in fields:
        parts.append(f"HTTP {fields['http.response.status_code']} from {server} {seconds}")
    elif "url.full" in fields:
        parts.append(f"no answer from {server} {seconds}")
    else:
        parts.append(seconds)
    return "  ".join(parts)


def _verdict(fields: Mapping[str, Any]) -> str:
    """What is known now of a sync that was over."""
    parts = [f"cause={fields['cause']}"] if "cause" in fields else []
    if "weights_applied" in fields:
        parts += [f"applied={fields['weights_applied']}", f"claimed={fields.get('claimed')}"]
        parts.append(f"by {fields.get('evidence')} of {fields.get('server')}, {fields.get('delay_seconds')} s later")
    elif "compared_bytes" in fields:
        parts.append(f"the same content as the sync before ({_bytes(fields['compared_bytes'])} compared)")
    return "  ".join(parts)


def _remedied(fields: Mapping[str, Any]) -> str:
    """What a remedy did; one that takes no time by its nature names none."""
    spent = fields.get("duration_seconds", 0)
    took = f" in {_seconds(spent)} s" if spent else ""
    return f"{fields.get('action')} {fields.get('outcome')}{took}  {fields.get('server') or 'an unknown server'}"


def _grounds(fields: Mapping[str, Any]) -> list[str]:
    """What is said below the first line: why, where, what to do, and the trace."""
    lines = [f"{_INDENT}shows:  {_short(fields['shown'])}"] if fields.get("shown") else []
    lines += [f"{_INDENT}detail: {_short(fields['detail'])}"] if fields.get("detail") else []
    if fields.get("checkpoint.path"):
        fault = fields.get("checkpoint.fault")
        lines.append(f"{_INDENT}folder: {fields['checkpoint.path']}{f': {_short(fault)}' if fault else ''}")
    lines += [f"{_INDENT}first:  {fields['hint']}"] if fields.get("hint") else []
    return [*lines, f"{_INDENT}trace {fields.get('trace_id')}"]


def _where(fields: Mapping[str, Any]) -> str:
    return f"run={fields.get('run')} sync={fields.get('sequence')} rank={fields.get('rank')}"


def _explanation(fields: Mapping[str, Any]) -> list[str]:
    lines = []
    if fields.get("response_text"):
        total, shown = fields.get("http.response.body.size"), _short(_message(str(fields["response_text"])))
        more = f"  ({total} bytes)" if isinstance(total, int) and total > _WIDTH else ""
        lines.append(f'{_INDENT}server: "{shown}"{more}')
    if fields.get("error.message") and fields.get("cause") != "peer":
        number = f" (errno {fields['errno']})" if "errno" in fields else ""
        lines.append(f"{_INDENT}error:  {fields.get('error.type')}{number}: {_short(fields['error.message'])}")
    if fields.get("checkpoint.path") and fields.get("cause") in _ABOUT_FILES:
        lines.append(f"{_INDENT}folder: {_folder(fields)}")
    lines.append(f"{_INDENT}first:  {fields.get('hint')}")
    return lines


def _message(body: str) -> str:
    """SGLang's own words, out of the JSON around them."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return body
    message = answer.get("message") if isinstance(answer, dict) else None
    return message if isinstance(message, str) and message else body


def _folder(fields: Mapping[str, Any]) -> str:
    files, fault = fields.get("checkpoint.files"), fields.get("checkpoint.fault")
    state = fault or ("complete here" if files else "no weight files here")
    size, free = _bytes(fields.get("checkpoint.bytes")), _bytes(fields.get("free_bytes"))
    counted = f", {files} weight files, {size}" if files is not None and size else ""
    return f"{fields['checkpoint.path']}: {state}{counted}{f', {free} free' if free else ''}"


def _remedies(fields: Mapping[str, Any]) -> list[str]:
    """One row, if there were any; an outcome is named unless it is done."""
    told = [
        f"{one['action']} {_seconds(one['duration_seconds'])}"
        + ("" if one["outcome"] == Outcome.DONE else f" {one['outcome']}")
        for one in fields.get("remedies") or ()
    ]
    return [f"{_INDENT}remedies: {' | '.join(told)}"] if told else []


def _seconds(seconds: float) -> str:
    return f"{seconds:.{2 if seconds >= 0.1 else 3}f}"


def _phases(fields: Mapping[str, Any]) -> str:
    spent = (fields.get("phases") or {}).items()
    phases = " | ".join(f"{name} {_seconds(seconds)}" for name, seconds in spent)
    return f"{_INDENT}phases: {phases}      trace {fields.get('trace_id')}"


def _short(text: object) -> str:
    flat = " ".join(str(text).split())
    return flat if len(flat) <= _WIDTH else f"{flat[:_WIDTH]}..."


def _bytes(count: object) -> str:
    if not isinstance(count, int):
        return ""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
