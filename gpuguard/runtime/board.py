"""The newest snapshot with what was measured: from the agent that runs, else by a look of one's own."""

import http.client
from pathlib import Path

import msgspec

from gpuguard.errors import ConfigInvalid
from gpuguard.model.health import Snapshot
from gpuguard.ports import Clock
from gpuguard.runtime import cache
from gpuguard.runtime.assembly import Parts
from gpuguard.runtime.http import SNAPSHOT, parse_address
from gpuguard.runtime.look import look

# The agent answers within milliseconds; one that does not, hangs.
DEADLINE = 2.0
# Eight GPUs with their links and processes take some 60 KiB. Units: bytes
LIMIT = 32 * 1024 * 1024


def measured(
    parts: Parts, *, state_dir: Path | None, root: Path, clock: Clock, without: tuple[str, ...] = ()
) -> tuple[Snapshot, str]:
    """The snapshot, and `agent` or `look`, by whom it was taken; a look leaves out the sources in `without`.

    Raises  what `look` raises, where no agent answers
    """
    if root == Path("/") and state_dir is not None and cache.agent_runs(str(state_dir)):
        found = cache.read(str(state_dir))
        listen = _listen(found[0]) if found is not None else ""
        if listen and (snapshot := ask_agent(listen)) is not None:
            return snapshot, "agent"
    return look(parts, state_dir=state_dir, root=root, clock=clock, without=without), "look"


def _listen(snapshot: dict[str, object]) -> str:
    shell = snapshot.get("shell")
    listen = shell.get("listen") if isinstance(shell, dict) else ""
    return listen if isinstance(listen, str) else ""


def ask_agent(listen: str) -> Snapshot | None:
    """What the agent at HOST:PORT says; None when it does not, or not in a form that this version knows."""
    try:
        host, port = parse_address(listen)
        connection = http.client.HTTPConnection(host, port, timeout=DEADLINE)
        try:
            connection.request("GET", SNAPSHOT)
            response = connection.getresponse()
            body = response.read(LIMIT)
        finally:
            connection.close()
        return msgspec.json.decode(body, type=Snapshot) if response.status == 200 else None
    except (OSError, http.client.HTTPException, ConfigInvalid, msgspec.MsgspecError):
        return None
