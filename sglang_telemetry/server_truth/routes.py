"""SGLang's routes that are asked here, by name, and how two of them spell a state (SGLang 0.5.23, measured)."""

READY = "/ready"
PING = "/ping"
MODEL_INFO = "/model_info"
OLD_MODEL_INFO = "/get_model_info"
"""Before ``/model_info``, with the same body."""
SERVER_INFO = "/server_info"
OLD_SERVER_INFO = "/get_server_info"
LOADS = "/v1/loads"
LOADS_CORE = "/v1/loads?include=core"
"""Without what is counted apart: memory, queues, LoRA."""
CHECKER = "/weights_checker"
UPDATE = "/update_weights_from_disk"
UPDATE_VERSION = "/update_weight_version"
BEGIN_UPDATE = "/begin_weight_update"
FLUSH = "/flush_cache"
PAUSE = "/pause_generation"
CONTINUE = "/continue_generation"
OPENAPI = "/openapi.json"


def is_well(status: int | None) -> bool | None:
    """What the status of ``/ready`` or ``/ping`` says; None where it is none of theirs."""
    return {200: True, 503: False}.get(status) if status is not None else None
