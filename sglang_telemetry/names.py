"""Every metric, label, event, environment and file name, and the buckets: the one place where names are written.

Renaming anything in here is a breaking change for somebody's dashboard and has its own heading in the changelog.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

LOGGER = "sglang_telemetry"
"""The stdlib logger that all log lines go through."""

DEFAULT_LISTEN = "127.0.0.1:9464"
"""Where the exporter serves unless told otherwise."""


class Phase(StrEnum):
    """What a sync is busy with; at every moment of a sync exactly one of these is open."""

    SETUP = "setup"
    STATE_DICT = "state_dict"
    SAVE = "save"
    REQUEST = "request"
    CONFIRM = "confirm"
    BROADCAST = "broadcast"
    BARRIER = "barrier"
    OTHER = "other"


class Result(StrEnum):
    """How a sync ended. ``cancelled`` is a stop that was asked for (Ctrl-C, SIGTERM), not a failure."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"


class Applied(StrEnum):
    """Did the server take the weights? Kept apart from the result, since status codes lie both ways."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


PROBE_FOLDER = ".sglang-telemetry"
"""Below a shared folder that an exporter watches: a name that no loader of weights looks at."""
PROBE_SUFFIX = ".probe"
PROBE_FILE_SECONDS = 10.0
"""How often an exporter writes its probe file."""
LOCKS = "locks"
"""Below the folder of the journals: what trainers of one host lock against each other."""
UPDATE_ROUTE = "/update_weights_from_"
"""What SGLang's routes that take weights begin with."""


class Transport(StrEnum):
    """The way the weights travel, after SGLang's ``/update_weights_from_*`` routes."""

    DISK = "disk"
    TENSOR = "tensor"
    DISTRIBUTED = "distributed"
    IPC = "ipc"


class Policy(StrEnum):
    """Which policy a rollout came from, by the weight versions in its answer; labels that are not ours are unknown."""

    CURRENT = "current"
    STALE = "stale"
    MIXED = "mixed"
    UNKNOWN = "unknown"


class Evidence(StrEnum):
    """By what it was told whether a server took the weights of a sync, the surest first."""

    CHECKPOINT = "checkpoint"
    CHECKSUM = "checksum"
    WEIGHT_VERSION = "weight_version"
    MODEL_PATH = "model_path"
    RESTART = "restart"


class Exit(StrEnum):
    """How a trainer process ended; ``lost`` vanished without a word (SIGKILL, out of memory, node)."""

    CLEAN = "clean"
    FAILED = "failed"
    LOST = "lost"


class Component(StrEnum):
    """The part of this package that an error of its own is counted for."""

    LOG = "log"
    JOURNAL = "journal"
    METRICS = "metrics"
    TRACES = "traces"
    INSTRUMENT = "instrument"
    EXPORTER = "exporter"
    SINK = "sink"


class Action(StrEnum):
    """What a remedy did; remedies are asked for one by one, and are off by default."""

    VALIDATE = "validate"
    SAFETENSORS = "safetensors"
    PUBLISH = "publish"
    CLEAN_UP = "clean_up"
    SERIALIZE = "serialize"
    TIMEOUT = "timeout"
    PAUSE = "pause"
    FLUSH = "flush"
    RELEASE = "release"
    WAIT = "wait"
    RETRY = "retry"
    CONTINUE_STALE = "continue_stale"


class Outcome(StrEnum):
    """What came of it: it did its work; it was no case for it; it failed, and the sync went on without it; or it held
    something back that would have done harm."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"
    REFUSED = "refused"


REMEDY_ACTIONS: dict[str, tuple[Action, ...]] = {
    "validate": (Action.VALIDATE,),
    "publish_atomically": (Action.PUBLISH, Action.CLEAN_UP),
    "retry": (Action.RETRY, Action.WAIT, Action.FLUSH),
    "timeout": (Action.TIMEOUT,),
    "pause": (Action.PAUSE, Action.FLUSH, Action.RELEASE),
    "safetensors": (Action.SAFETENSORS,),
    "serialize": (Action.SERIALIZE,),
    "on_failure": (Action.CONTINUE_STALE,),
}
"""What each remedy, by its name, can do."""


class LogEvent(StrEnum):
    """Names of the log events."""

    STARTED = "weight_sync.started"
    SUCCEEDED = "weight_sync.succeeded"
    FAILED = "weight_sync.failed"
    CANCELLED = "weight_sync.cancelled"
    REMEDY = "weight_sync.remedy"
    RETRIED = "weight_sync.retried"
    CONTINUED_STALE = "weight_sync.continued_stale"
    NOT_APPLIED = "weight_sync.not_applied"
    RESOLVED = "weight_sync.resolved"
    SAME_BYTES = "weight_sync.same_bytes"
    SERVER_RESTARTED = "sglang_server.restarted"
    SERVER_WENT_BACK = "sglang_server.went_back"
    SERVER_LEFT_PAUSED = "sglang_server.left_paused"
    ENGINE_PRINT = "engine.print"
    TELEMETRY_ERROR = "telemetry.error"


class SpanName(StrEnum):
    """Names of the spans of a sync; a phase's name is made by :func:`phase_span`, a request's is method and route."""

    SYNC = "weight_sync"
    RANK = "weight_sync.rank"
    RESOLVED = "weight_sync.resolved"
    REMEDY = "weight_sync.remedy"


def remedy_span(action: Action) -> str:
    """Name of the span of what a remedy did, such as ``weight_sync.remedy.validate``."""
    return f"{SpanName.REMEDY}.{action}"


def phase_span(phase: Phase) -> str:
    """Name of the span of one phase, such as ``weight_sync.save``."""
    return f"{SpanName.SYNC}.{phase}"


class Attribute(StrEnum):
    """Attributes of spans and keys of log lines; those without our prefix are OpenTelemetry's stable conventions."""

    RUN = "weight_sync.run"
    RUN_ID = "weight_sync.run_id"
    SEQUENCE = "weight_sync.sequence"
    RANK = "weight_sync.rank"
    WORLD_SIZE = "weight_sync.world_size"
    VERSION = "weight_sync.version"
    TRANSPORT = "weight_sync.transport"
    RESULT = "weight_sync.result"
    CAUSE = "weight_sync.cause"
    WEIGHTS_APPLIED = "weight_sync.weights_applied"
    ATTEMPTS = "weight_sync.attempts"
    PAYLOAD_BYTES = "weight_sync.payload_bytes"
    CLAIMED = "weight_sync.claimed"
    EVIDENCE = "weight_sync.evidence"
    DELAY = "weight_sync.resolution_delay_seconds"
    UNFINISHED = "weight_sync.unfinished"
    REMEDY_OUTCOME = "weight_sync.remedy.outcome"
    REMEDY_DETAIL = "weight_sync.remedy.detail"
    RESPONSE_TEXT = "weight_sync.response_text"
    ERROR_MESSAGE = "error.message"
    ERROR_TYPE = "error.type"
    HTTP_METHOD = "http.request.method"
    HTTP_RESEND_COUNT = "http.request.resend_count"
    HTTP_RESPONSE_SIZE = "http.response.body.size"
    HTTP_STATUS = "http.response.status_code"
    SERVER_ADDRESS = "server.address"
    SERVER_PORT = "server.port"
    URL = "url.full"
    HOST = "host.name"
    PID = "process.pid"
    SERVICE_INSTANCE = "service.instance.id"
    SERVICE_NAME = "service.name"


RESPONSE_EVENT = "weight_sync.response"
"""Name of the span event that carries the text of an answer."""


class Env(StrEnum):
    """Environment variables that are read; everything has a default without them."""

    DIR = "SGLANG_TELEMETRY_DIR"
    RUN = "SGLANG_TELEMETRY_RUN"
    RUN_ID = "SGLANG_TELEMETRY_RUN_ID"
    LAUNCH_ID = "SGLANG_TELEMETRY_LAUNCH_ID"
    LOG_FORMAT = "SGLANG_TELEMETRY_LOG_FORMAT"
    DISABLED = "SGLANG_TELEMETRY_DISABLED"
    API_KEY = "SGLANG_TELEMETRY_API_KEY"
    API_KEY_FILE = "SGLANG_TELEMETRY_API_KEY_FILE"
    ADMIN_API_KEY = "SGLANG_TELEMETRY_ADMIN_API_KEY"
    ADMIN_API_KEY_FILE = "SGLANG_TELEMETRY_ADMIN_API_KEY_FILE"
    REMEDIES = "SGLANG_TELEMETRY_REMEDIES"
    REMEDIES_FILE = "SGLANG_TELEMETRY_REMEDIES_FILE"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it is served: its name without ``_total``, its help text and its label names."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]

    @property
    def served_as(self) -> str:
        """The name a query uses: a counter ends in ``_total``, an info metric in ``_info``."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


_TARGET = ("run", "server", "transport")

DURATION = Metric(
    "weight_sync_duration_seconds",
    "histogram",
    "Seconds of one weight sync as the coordinator saw it, from the call of update_policy to its end.",
    (*_TARGET, "result"),
)
PHASE_DURATION = Metric(
    "weight_sync_phase_duration_seconds",
    "histogram",
    "Seconds the coordinator spent in one phase of a weight sync; the phases of a sync add up to its duration.",
    ("run", "phase"),
)
LAST_PHASE = Metric(
    "weight_sync_last_phase_duration_seconds",
    "gauge",
    "Seconds that the last sync of a live run spent in each phase, as the coordinator saw it; their sum is its "
    "duration.",
    ("run", "phase"),
)
FAILURES = Metric(
    "weight_sync_failures", "counter", "Failed weight syncs by cause, counted once a sync.", (*_TARGET, "cause")
)
ATTEMPTS = Metric(
    "weight_sync_attempts", "counter", "Attempts to sync weights by result; a retry is another.", (*_TARGET, "result")
)
REMEDIES = Metric(
    "weight_sync_remedies",
    "counter",
    "What remedies did, by action and outcome; those that are off do nothing.",
    ("run", "action", "outcome"),
)
REMEDY_SECONDS = Metric(
    "weight_sync_remedy_seconds", "counter", "Seconds that remedies took of the trainer's time.", ("run", "action")
)
STALE_SYNCS = Metric(
    "weight_sync_stale_syncs",
    "gauge",
    "Failed syncs in a row over which the run went on, as the remedy continue_stale lets it; 0 after one that "
    "succeeded, absent for a run that does not use it.",
    ("run",),
)
LAST_START = Metric(
    "weight_sync_last_start_timestamp_seconds", "gauge", "Unix time of the start of the last sync.", ("run", "rank")
)
LAST_SUCCESS = Metric(
    "weight_sync_last_success_timestamp_seconds",
    "gauge",
    "Unix time at which the last successful sync ended; absent before the first.",
    ("run", "server"),
)
LAST_FAILURE = Metric(
    "weight_sync_last_failure_timestamp_seconds",
    "gauge",
    "Unix time at which the last sync that failed with this cause ended; absent before the first.",
    ("run", "server", "cause"),
)
LAST_FAILURE_TRACE = Metric(
    "weight_sync_last_failure_trace_timestamp_seconds",
    "gauge",
    "The same time with the trace id of that sync, for the page to name; of each cause only the last.",
    ("run", "server", "cause", "trace_id"),
)
ACTIVE = Metric("weight_sync_active", "gauge", "1 while this rank is inside a sync, else 0.", ("run", "rank"))
ACTIVE_PHASE = Metric(
    "weight_sync_active_phase",
    "gauge",
    "1 for the phase that the running sync of this rank is in; absent when no sync runs.",
    ("run", "rank", "phase"),
)
ACTIVE_PHASE_START = Metric(
    "weight_sync_active_phase_start_timestamp_seconds",
    "gauge",
    "Unix time at which the running sync of this rank went into that phase; absent when no sync runs.",
    ("run", "rank", "phase"),
)
RANK_WAIT = Metric(
    "weight_sync_rank_wait_seconds",
    "histogram",
    "Seconds of one sync that this rank spent in broadcast and barrier, waiting for other ranks.",
    ("run", "rank"),
)
PAYLOAD = Metric("weight_sync_payload_bytes", "gauge", "Size of the last checkpoint that was written.", ("run",))
TIMEOUT = Metric(
    "weight_sync_timeout_seconds", "gauge", "The engine's request time-out for an update.", ("run", "server")
)
EXPECTED_INTERVAL = Metric(
    "weight_sync_expected_interval_seconds",
    "gauge",
    "Seconds between the starts of two syncs: given by the user, else the median of those seen.",
    ("run",),
)
PUBLISHED = Metric(
    "weight_sync_published_version",
    "gauge",
    "Sequence of the sync whose weights were sent last and, by the server's own word, taken.",
    ("run", "server"),
)
CONFIRMED = Metric(
    "weight_sync_confirmed_version",
    "gauge",
    "Sequence of the last sync of this run that the server was seen to run; absent before the first.",
    ("run", "server"),
)
CONFIRMATION_DELAY = Metric(
    "weight_sync_confirmation_delay_seconds",
    "histogram",
    "Seconds from the end of a sync until the exporter had seen whether the server took its weights: what the sync had "
    "claimed, and what was found.",
    ("run", "server", "claimed", "applied"),
)
UNCHANGED = Metric(
    "weight_sync_unchanged_syncs",
    "gauge",
    "Syncs in a row whose checkpoint had the content of the one before, unless the model is known not to have been "
    "trained in between.",
    ("run",),
)
ROLLOUTS = Metric(
    "weight_sync_rollouts",
    "counter",
    "Generated answers by the policy that made them: the last synced, an older one, several, or one that is unknown.",
    ("run", "policy"),
)
ROLLOUTS_ABORTED = Metric(
    "weight_sync_rollouts_aborted", "counter", "Generated answers that the server cut off, as a pause does.", ("run",)
)
STEP_SHARE = Metric(
    "weight_sync_step_share_ratio",
    "gauge",
    "Share of the time between the starts of the last two syncs that the earlier one took.",
    ("run",),
)
PROCESS_UP = Metric(
    "weight_sync_process_up",
    "gauge",
    "1 while the trainer process of this rank lives, 0 after it failed or vanished; absent after a clean end, "
    "and where it cannot be known.",
    ("run", "rank"),
)
PROCESS_START = Metric(
    "weight_sync_process_start_timestamp_seconds",
    "gauge",
    "Unix time at which the last trainer process of this rank was instrumented.",
    ("run", "rank"),
)
PROCESS_EXITS = Metric(
    "weight_sync_process_exits", "counter", "Trainer processes that ended, by how they ended.", ("run", "how")
)
PROCESS_LAST_EXIT = Metric(
    "weight_sync_process_last_exit_timestamp_seconds",
    "gauge",
    "Unix time at which a trainer process last ended in this way.",
    ("run", "how"),
)
RUN_INFO = Metric(
    "weight_sync_run",
    "info",
    "The runs whose trainer processes live: identity and versions.",
    ("run", "run_id", "engine", "world_size", "host", "versions"),
)
SERVER_UP = Metric(
    "weight_sync_server_up",
    "gauge",
    "1 when the server of a live run answered over HTTP, whatever it said, when it was last asked; 0 when it did not.",
    ("server",),
)
SERVER_READY = Metric(
    "weight_sync_server_ready",
    "gauge",
    "1 when the server's /ready said 200, 0 when it said 503, as while it is paused; absent while it is down, and "
    "where that route is not known.",
    ("server",),
)
SERVER_INFO = Metric(
    "weight_sync_server",
    "info",
    "The SGLang servers of live runs with the version of SGLang that they name.",
    ("server", "version"),
)
SERVER_RESTARTS = Metric(
    "weight_sync_server_restarts",
    "counter",
    "Restarts of the server that were noticed: it was gone and came back, or it went back to what it showed at first.",
    ("server",),
)
SERVER_LAST_RESTART = Metric(
    "weight_sync_server_last_restart_timestamp_seconds",
    "gauge",
    "Unix time at which a restart of the server was last noticed; absent before the first.",
    ("server",),
)
SERVER_WENT_BACK = Metric(
    "weight_sync_server_went_back",
    "counter",
    "Times that the server showed the weight version of an earlier sync than the one it was seen to run.",
    ("server",),
)
SERVER_CURRENT = Metric(
    "weight_sync_server_current",
    "gauge",
    "1 while the server shows the weights that this run synced last, 0 when it shows others; absent when it cannot be "
    "told.",
    ("run", "server"),
)
SERVER_LEFT_PAUSED = Metric(
    "weight_sync_server_left_paused",
    "gauge",
    "1 while a server is not ready that a trainer of the run paused for a sync and left so, 0 when it is ready again "
    "or the run has it in hand; absent for all others.",
    ("run", "server"),
)
SHARED_PATH_FREE = Metric(
    "weight_sync_shared_path_free_bytes",
    "gauge",
    "Free bytes of the file system of the checkpoint folder after the last sync.",
    ("run",),
)
SHARED_PATH_FREE_INODES = Metric(
    "weight_sync_shared_path_free_inodes",
    "gauge",
    "Free inodes of that file system; absent where it has no fixed number of them.",
    ("run",),
)
SHARED_PATH_WRITABLE = Metric(
    "weight_sync_shared_path_writable",
    "gauge",
    "0 when the file system of the checkpoint folder is mounted read-only on the trainer's host, else 1.",
    ("run",),
)
SHARED_PATH_INFO = Metric(
    "weight_sync_shared_path",
    "info",
    "File system type of the checkpoint folder, on the trainer's host.",
    ("run", "fs_type"),
)
WATCHED_AGE = Metric(
    "weight_sync_watched_path_age_seconds",
    "gauge",
    "Seconds since the probe file that the exporter of that host writes into --watch-path was seen to change here.",
    ("host",),
)
WATCHED_WRITABLE = Metric(
    "weight_sync_watched_path_writable",
    "gauge",
    "1 when this exporter could write its own probe file into --watch-path, else 0; absent without that option.",
    (),
)
TELEMETRY_ERRORS = Metric(
    "weight_sync_telemetry_errors",
    "counter",
    "Errors of this monitoring itself; none of them reached the training.",
    ("component",),
)

TELEMETRY_LAST_ERROR = Metric(
    "weight_sync_telemetry_last_error_timestamp_seconds",
    "gauge",
    "Unix time of the last error of this monitoring itself; absent before the first.",
    ("component",),
)

METRICS: tuple[Metric, ...] = (
    DURATION,
    PHASE_DURATION,
    LAST_PHASE,
    FAILURES,
    ATTEMPTS,
    REMEDIES,
    REMEDY_SECONDS,
    STALE_SYNCS,
    LAST_START,
    LAST_SUCCESS,
    LAST_FAILURE,
    LAST_FAILURE_TRACE,
    ACTIVE,
    ACTIVE_PHASE,
    ACTIVE_PHASE_START,
    RANK_WAIT,
    PAYLOAD,
    TIMEOUT,
    EXPECTED_INTERVAL,
    PUBLISHED,
    CONFIRMED,
    CONFIRMATION_DELAY,
    UNCHANGED,
    ROLLOUTS,
    ROLLOUTS_ABORTED,
    STEP_SHARE,
    PROCESS_UP,
    PROCESS_START,
    PROCESS_EXITS,
    PROCESS_LAST_EXIT,
    RUN_INFO,
    SERVER_UP,
    SERVER_READY,
    SERVER_INFO,
    SERVER_RESTARTS,
    SERVER_LAST_RESTART,
    SERVER_WENT_BACK,
    SERVER_CURRENT,
    SERVER_LEFT_PAUSED,
    SHARED_PATH_FREE,
    SHARED_PATH_FREE_INODES,
    SHARED_PATH_WRITABLE,
    SHARED_PATH_INFO,
    WATCHED_AGE,
    WATCHED_WRITABLE,
    TELEMETRY_ERRORS,
    TELEMETRY_LAST_ERROR,
)

BUCKETS: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds in seconds of every histogram: a small model on one host takes 0.05 s, a big one minutes."""


def release_command(url: str) -> str:
    """What continues generation on a server that was left paused."""
    return f"sglang-telemetry check --server {url} --release"


def probe_host(host: str) -> str:
    """The name of a host's probe file, without the suffix, whatever the host is called."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", host)[:200]
