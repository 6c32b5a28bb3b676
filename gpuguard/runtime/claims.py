"""What is claimed of scheduling GPUs, measured: the traces that it needs from a folder, and what came out as a page."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuguard.errors import ReadFailed
from gpuguard.runtime.trace_files import trace_lines
from gpuguard.runtime.words import listed, padded, paragraph, tidy
from gpuguard.simulator import claims
from gpuguard.simulator.claim import Recorded
from gpuguard.simulator.traces import shared_columns

FOLDER = "traces"
"""Where the traces are looked for when no folder is named."""

COLUMNS = (34, 20, 20)
"""What a part of a claim is about, what was claimed of it, and what came out; two spaces between them."""

Found = Mapping[str, Any]  # Any: the answer is JSON, which mixes types


def traces(folder: str | None, say: Callable[[str], None]) -> dict[str, Recorded]:
    """Those traces that the folder holds, each read whole; what is missing is said.

    Raises  ReadFailed when a folder was named that is none; what reading a trace raises
    """
    place = Path(folder or FOLDER)
    if folder is not None and not place.is_dir():
        raise ReadFailed(f"{folder} is no folder: give the one that holds the traces")
    found: dict[str, Recorded] = {}
    for name, (jobs, nodes) in claims.TRACES.items():
        absent = [file for file in (jobs, nodes) if not (place / file).is_file()]
        if absent:
            where = f"--traces {folder}" if folder is not None else f"./{FOLDER}"
            say(
                f"{where} has no {listed(absent)}: claims that need trace {name} are not measured;"
                " --traces DIR names the folder that has them"
            )
            continue
        trace, cluster = str(place / jobs), str(place / nodes)
        found[name] = Recorded(
            trace=shared_columns.jobs(trace_lines(trace), trace),
            nodes=shared_columns.nodes(trace_lines(cluster), cluster),
        )
    return found


def findings(
    recorded: Mapping[str, Recorded], *, seed: int, only: Sequence[str], say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Each claim beside what was measured, one after the other."""
    return claims.run(recorded, random.Random(seed), say, only)


def page(found: Iterable[Found]) -> Iterator[str]:
    """The findings for people, in lines of 80 columns, each as soon as it is there."""
    told = holds = absent = 0
    for finding in found:
        yield from _finding(finding)
        yield ""
        told += 1
        holds += bool(finding["holds"])
        absent += "absent" in finding["measured"]
    without = f"; {absent} not measured: the trace is missing" if absent else ""
    yield from paragraph(f"{holds} of {told} claims hold as they were claimed{without}.")


def _finding(finding: Found) -> Iterator[str]:
    absent = "absent" in finding["measured"]
    verdict = "not measured" if absent else "holds" if finding["holds"] else "does not hold"
    yield from paragraph(tidy(f"{finding['id']}  {verdict}: {finding['claim']}"), hanging=4)
    if absent:
        yield from paragraph(tidy(str(finding["measured"].get("why", ""))), indent=4)
        return
    compared = finding.get("compared") or ()
    if compared:
        yield _cells("", "claimed", "measured")
    for row in compared:
        yield from _row(row)
    for assumption in finding["assumptions"]:
        yield from paragraph(tidy(f"assumed: {assumption}"), indent=4, hanging=2)


def _row(row: Found) -> Iterator[str]:
    """One part of a claim; what is longer than its column goes on below itself."""
    import textwrap

    mark = "" if row["holds"] else "! "
    texts = (mark + tidy(str(row["what"])), tidy(str(row["claimed"])), tidy(str(row["measured"])))
    wrapped = [
        textwrap.wrap(text, width, break_on_hyphens=False) or [""]
        for text, width in zip(texts, COLUMNS, strict=True)
    ]  # fmt: skip
    for at in range(max(map(len, wrapped))):
        yield _cells(*(lines[at] if at < len(lines) else "" for lines in wrapped))


def _cells(*texts: str) -> str:
    cells = "  ".join(padded(text, width) for text, width in zip(texts, COLUMNS, strict=True))
    return f"  {cells}".rstrip()
