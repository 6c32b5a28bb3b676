"""A shelf of what is claimed of scheduling GPUs, one file a claim, each with the scenario that tries it.

A file has `ID`, `CLAIM` (one sentence), `CLAIMED` (the figures), `NEEDS` (names of traces, or none), `measure(given) ->
Finding`, which runs the scenario on the real core and writes down what came out and what was assumed, and
`judge(measured) -> rows`, each of which holds a part of the claim against it by a rule that anybody can read. A claim
holds when all its rows do. That one does not hold is a finding like any other: it is reported, not repaired.
To add one, write a file here, name it in `ORDER`, and hold its rule both ways in `tests/unit/simulator/claims/`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from gpuguard.errors import UsageError
from gpuguard.simulator.claim import Claim, Dice, Given, Recorded, Row
from gpuguard.simulator.scenes import PHILLY

ORDER = (
    "s01", "s02", "s03", "s04", "s05", "s06", "s07", "s08", "s09", "s10", "s11", "s12", "s13", "s14", "s15", "s16",
    "exit_zero", "two_on_a_card", "card_packing", "data_loading",
)  # fmt: skip

TRACES: Mapping[str, tuple[str, str]] = {PHILLY: ("philly11vc_jobs.csv.gz", "philly11vc_sim_nodes.csv.gz")}
"""The files of each trace that a claim may need: its jobs, and nodes for them. Shape: `traces.shared_columns`."""


def run(
    traces: Mapping[str, Recorded],
    dice: Dice,
    say: Callable[[str], None] = lambda _: None,
    only: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:  # Any: JSON
    """Each claim with what was measured, one after the other.

    Shape   traces: by the names of TRACES, those that are there. only: ids of claims; none: all. Each gives {id, claim,
            claimed, measured, compared, holds, assumptions}; `compared` are the parts of the claim, {what, claimed,
            measured, holds} each. A claim whose traces are absent does not hold, and says so in `measured`
    Raises  UsageError for an id that no claim has
    """
    shelf = [load(name) for name in ORDER]
    ids = [claim.ID for claim in shelf]
    unknown = [name for name in only if name not in ids]
    if unknown:
        raise UsageError(f"no claim is called {', '.join(unknown)}: choose among {', '.join(ids)}")
    first = dice.getrandbits(64)
    made: dict[str, Any] = {}
    for claim in shelf:
        if only and claim.ID not in only:
            continue
        # Its own throws, so that it comes out alike whether it is measured alone or after others.
        dice.seed(f"{first} {claim.ID}")
        yield _measured(claim, Given(traces=traces, dice=dice, say=_saying(say, claim.ID), made=made))


def load(name: str) -> Claim:
    """The claim in the file of this name."""
    return cast(Claim, import_module(f"{__name__}.{name}"))


def _saying(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda text: say(f"{name} {text}")


def _measured(claim: Claim, given: Given) -> dict[str, Any]:
    told = {"id": claim.ID, "claim": claim.CLAIM, "claimed": claim.CLAIMED}
    absent = [name for name in claim.NEEDS if name not in given.traces]
    if absent:
        files = " and ".join(file for name in absent for file in TRACES[name])
        return {
            **told, "measured": {"absent": absent, "why": f"not measured: give the folder that holds {files}"},
            "compared": [], "holds": False, "assumptions": [],
        }  # fmt: skip
    finding = claim.measure(given)
    rows = claim.judge(finding.measured)
    return {
        **told, "measured": dict(finding.measured), "compared": [_compared(row) for row in rows],
        "holds": bool(rows) and all(row.holds for row in rows), "assumptions": list(finding.assumptions),
    }  # fmt: skip


def _compared(row: Row) -> dict[str, Any]:
    return {"what": row.what, "claimed": row.claimed, "measured": row.measured, "holds": row.holds}
