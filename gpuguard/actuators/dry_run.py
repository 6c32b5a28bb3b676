"""Says what would be done, and does nothing: the default, so that an agent on trial can never take a node away."""

from dataclasses import dataclass
from typing import assert_never

from gpuguard.custody.token import parse_reason
from gpuguard.model.actions import Action, Outcome
from gpuguard.ports import NodeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Nothing to choose."""


class DryRun:
    """Every wish is granted in words; no scheduler is asked or written to."""

    name = "dry_run"

    def perform(self, action: Action) -> Outcome:
        """What a real target would be told, marked as a dry run."""
        if action.verb != "release" and parse_reason(action.reason) != action.token:
            return Outcome(
                result="refused",
                message=f"dry run: the reason does not carry the token {action.token}; this is a bug, please report it",
            )
        message = f"dry run: would {_wish(action)}; nothing was written"
        return Outcome(result="done", message=message, node_state=self.name)

    def read_state(self) -> NodeReport:
        """Says that nothing is known: a dry run asks no scheduler."""
        return NodeReport(target=self.name, node="", error="dry run: no scheduler is asked")


def build(settings: Settings) -> DryRun:
    """The actuator that is used unless a site chooses another."""
    return DryRun()


def _wish(action: Action) -> str:
    match action.verb:
        case "drain":
            return f"drain this node with the reason {action.reason!r}"
        case "update_reason":
            return f"change the reason of our drain to {action.reason!r}"
        case "release":
            return f"lift our drain {action.token}, if its reason is still ours"
        case "adopt":
            return f"take over a gpuguard drain with the reason {action.reason!r}"
        case "requeue":
            return f"start {action.subject} anew, if it still runs here, with the reason {action.reason!r}"
        case "reclaim":
            return f"end process {action.pid}, if its job is over, with the reason {action.reason!r}"
        case "evict":
            return f"ask the pods on this node to leave, with the reason {action.reason!r}"
        case "test":
            return f"test {action.subject} while nothing runs on it, with the reason {action.reason!r}"
        case "reset":
            return f"reset {action.subject} while nobody uses it, with the reason {action.reason!r}"
        case "reboot":
            return f"ask for a reboot of this node, with the reason {action.reason!r}"
        case unknown:
            assert_never(unknown)
