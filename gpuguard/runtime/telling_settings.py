"""How people are told, whatever the form: section [notify]. Here, because every process checks the whole file."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpuguard.errors import ConfigInvalid
from gpuguard.model.units import Seconds
from gpuguard.notices import Webhook
from gpuguard.runtime.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all webhooks have in common; where they are stands in [notify.slack] and its like."""

    node: str = ""  # what this node is called in notices; where it is empty, this machine's name up to the first dot
    bundle: bool = False  # a page makes a support bundle on the node, one an hour at most, and tells its path
    timeout: Seconds = Seconds(10.0)  # one try takes no longer, from the name's look-up to the end of the answer
    tries: int = 6  # then a notice is given up for now; what still stands is told again later
    longest_wait: Seconds = Seconds(
        60.0
    )  # between two tries, unless the receiver asks for more, of which it gets 5 min
    queue: int = 64  # notices that wait for their turn; more are dropped and counted, and told later if they stand
    hourly: int = 60  # of one form; beyond, warnings and notices are kept back; pages and what is over never are
    ca_file: str = ""  # authorities that webhooks' certificates are checked by, as PEM; empty for the system's own

    def __post_init__(self) -> None:
        for name in ("timeout", "longest_wait"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be greater than 0")
        for name in ("tries", "queue", "hourly"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")


def configured(config: Config, forms: Iterable[str]) -> tuple[str, ...]:
    """The forms that have an address.

    Raises  ConfigInvalid for one that has two
    """
    found = []
    for name in forms:
        webhook: Webhook = config.settings(f"notify.{name}")
        if webhook.url and webhook.url_file:
            raise ConfigInvalid([f"[notify.{name}] url_file: there is a url too; remove one of them"])
        if webhook.url or webhook.url_file:
            found.append(name)
    return tuple(found)
