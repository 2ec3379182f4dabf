"""One server: what is asked of it, and the findings that follow, up to the first that makes the rest meaningless."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from sglang_telemetry.preflight import address, dry_run, state
from sglang_telemetry.preflight.access import access
from sglang_telemetry.preflight.findings import Check, Finding, Level, at, fail, warn
from sglang_telemetry.preflight.folder import FolderState
from sglang_telemetry.preflight.job import Job, outcome
from sglang_telemetry.preflight.loader import loader
from sglang_telemetry.preflight.model import TrainerModel, same_model
from sglang_telemetry.preflight.program import program, routes, version
from sglang_telemetry.preflight.proxy import proxy
from sglang_telemetry.preflight.visibility import is_here, visibility
from sglang_telemetry.server_truth.examine import examine
from sglang_telemetry.server_truth.facts import Program, ServerFacts
from sglang_telemetry.server_truth.keys import Keys
from sglang_telemetry.server_truth.no_answer import NoAnswer
from sglang_telemetry.server_truth.routes import SERVER_INFO
from sglang_telemetry.text import server_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a server said, and what was found out about it from here."""

    facts: ServerFacts
    certificate: str | None = None
    same_host: bool = False


@dataclass(slots=True, kw_only=True)
class OneServer:
    """One server in the making of a report.

    Args:
        url: Its base URL; None when the address is none.
        place: How it is called in findings.
        findings: In order.
        same_host: It runs on this host.
        proved: A dry run showed that it sees the folder.
        loaded_in: Seconds that the update of a dry run took.
    """

    url: str | None
    place: str
    findings: tuple[Finding, ...] = ()
    asked: Asked | None = None
    same_host: bool = False
    proved: bool = False
    loaded_in: float | None = None

    @property
    def failed(self) -> bool:
        """Something is wrong with it already."""
        return any(one.level is Level.FAIL for one in self.findings)

    def add(self, *findings: Finding | None) -> None:
        """What was found next."""
        self.findings += at(self.place, findings)


def begin(text: str) -> OneServer:
    """Read the address that the user gave."""
    url = address.parsed(text)
    if isinstance(url, Finding):
        one = OneServer(url=None, place="server")
        one.add(url)
        return one
    return OneServer(url=url, place=f"{server_of(url) or url}{urlsplit(url).path}")


def ask(url: str, keys: Keys, environ: Mapping[str, str], seconds: float) -> Asked:
    """Ask it everything that costs it nothing; it raises nothing that a server can cause."""
    facts = examine(url, keys=keys, seconds=seconds)
    certificate = address.certificate_fault(url, environ) if facts.failure is None else None
    same_host = facts.failure is not NoAnswer.UNKNOWN_HOST and is_here(url)
    return Asked(facts=facts, certificate=certificate, same_host=same_host)


def judge(one: OneServer, asked: Job[Asked], environ: Mapping[str, str], keys: Keys, left: float) -> None:
    """Add what follows from its answers.

    Args:
        one: The server.
        asked: Of :func:`ask`.
        environ: Of the trainer.
        keys: Those that are set here.
        left: Seconds to wait for the answers.
    """
    url = one.url
    if url is None:
        return
    try:
        one.asked = asked.result(left)
    except TimeoutError:
        one.add(
            fail(
                Check.ADDRESS,
                "it could not be asked in time: the name service here, or the server, hangs",
                "use the server's IP address, or restart it if it hangs",
            ),
            proxy(url, environ),
        )
        return
    except Exception as error:
        one.add(fail(Check.ADDRESS, f"it cannot be checked: {type(error).__name__}: {error}", "report this line"))
        return
    facts = one.asked.facts
    one.same_host = one.asked.same_host
    one.add(
        address.answers(facts, one.asked.certificate),
        proxy(url, environ),
        program(facts),
        version(facts),
        routes(facts),
        access(facts, keys),
        state.ready(facts),
        state.weights(facts),
        state.clock(facts),
        loader(facts) if facts.program is Program.SGLANG else None,
    )


def compare_model(one: OneServer, model: TrainerModel, left: float) -> None:
    """Add whether the trainer's model is the server's; the path that it was started with is looked at, and may hang."""
    if one.asked is None:
        return
    facts = one.asked.facts
    found, hangs = outcome(Job(lambda: same_model(model, facts), "preflight-model"), left)
    one.add(
        warn(Check.MODEL, f"not compared: {hangs}", "look at the mount of the server's model here") if hangs else found
    )


def prove(one: OneServer, folder: FolderState | None, keys: Keys, *, wanted: bool, seconds: float | None) -> None:
    """Add whether it sees the folder, and with a dry run what two updates showed that change nothing.

    Args:
        one: The server.
        folder: What is known of the shared folder; None when it cannot be used.
        keys: What the server wants to be shown.
        wanted: The user asked for a dry run.
        seconds: The engine's time-out.
    """
    if one.url is None or one.asked is None or one.asked.facts.program is not Program.SGLANG:
        return
    usable = folder if folder is not None and folder.error is None else None
    known = visibility(usable.probes, same_host=one.same_host) if usable is not None else None
    if not wanted:
        one.add(known)
        return
    obstacle = _obstacle(one, one.url, one.asked, keys)
    if obstacle is not None:
        one.add(known, obstacle)
        return
    as_it_was = True
    if usable is not None:
        finding, as_it_was = dry_run.sees(one.url, usable.where, keys)
        one.proved = finding.level is Level.OK
        one.add(finding)
    if as_it_was:
        resent = dry_run.resend(one.url, one.asked.facts, keys, seconds=seconds or dry_run.RESEND_SECONDS)
        one.loaded_in = resent.seconds
        one.add(resent.finding)


def _obstacle(one: OneServer, url: str, asked: Asked, keys: Keys) -> Finding | None:
    """Why it is sent no update now."""
    if one.failed:
        return warn(
            Check.DRY_RUN,
            "not sent: something is wrong with this server already",
            "repair that first, and run this again",
        )
    if asked.facts.server_info_status != 200:
        return warn(
            Check.DRY_RUN,
            f"not sent: it does not tell how it was started ({SERVER_INFO}), and an update might kill it",
            f"run this again when it answers {SERVER_INFO}",
        )
    return dry_run.busy(url, keys)
