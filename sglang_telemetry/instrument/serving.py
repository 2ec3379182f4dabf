"""What the servers of an engine say that they run: is it still what the last good sync has left there?

A server that died and came back runs its START weights, and says so in ``/model_info`` (SGLang 0.5.23, measured: the
path of the checkpoint that it has loaded last, and its ``weight_version``).
"""

from sglang_telemetry.remedies.client import Client
from sglang_telemetry.text import clean

Model = tuple[str | None, str | None]
"""Path and weight version."""


class Serving:
    """Asked after a sync, through the clients that its updates went through."""

    def __init__(self) -> None:
        self._now: dict[str, Client] = {}
        self._known: dict[str, tuple[Client, Model | None]] = {}
        self._given_up: list[Model] = []

    def begin(self) -> None:
        """A sync begins: it may go to other servers."""
        self._now = {}

    def sends(self, server: str, client: Client) -> None:
        """An update goes to a server."""
        self._now[server] = client

    def took(self) -> None:
        """The sync succeeded."""
        self._known = {server: (client, _model_of(client)) for server, client in self._now.items()}
        self._given_up = []

    def changed(self, sent: Model) -> str | None:
        """The sync failed: in words why a server may not run weights of this run; None when all of them do.

        Args:
            sent: What the failed update named: a server that took it after all, perhaps later, runs that.
        """
        self._given_up.append(sent)
        if not self._known:
            return "no update that succeeded went through engine.http: what the server runs is not known"
        for server in self._now.keys() - self._known.keys():
            return f"no sync to {server} has succeeded: it has its START weights"
        for server, (client, before) in self._known.items():
            now = _model_of(client)
            if before is None or now is None:
                return f"{server} does not say in /model_info what it runs: that may be its START weights"
            if not all(one in of_ours for one, *of_ours in zip(now, before, *self._given_up, strict=True)):
                path, version = (clean(str(one), limit=256) for one in now)
                return f"{server} runs {path} (weight_version {version}), and not what the last good sync left there"
        return None


def _model_of(client: Client) -> Model | None:
    fields = client.fields("/model_info")
    return None if fields is None else (fields.get("model_path"), fields.get("weight_version"))
