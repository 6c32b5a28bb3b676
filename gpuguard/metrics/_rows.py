"""What is known of each subject now, with the labels that tell it apart.

Not a family: it stands beside those that are computed from readings. A series of a GPU carries `gpu`, the driver's
number or, where nobody told that, the PCI address, and `uuid`; what else is known of it is in gpuguard_gpu_info.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpuguard.model.health import Snapshot, SubjectView
from gpuguard.model.ids import SubjectId, kind_of
from gpuguard.model.readings import SubjectKind, Values, merged

# A node with eight GPUs, each in seven MIG instances, has 56 jobs at most; whoever says there are more says it of jobs
# without a GPU.
JOBS_SHOWN = 64
# `job` is what Prometheus calls the scrape job: it would rename ours to exported_job.
JOB = "job_id"
JOB_LIMIT = 112  # letters of a job's label: its keeper, and model/jobs.ID_LIMIT
_STRANGE = re.compile(r"[^A-Za-z0-9._@/-]")


class Measured(NamedTuple):
    """One subject's newest values, less what is too old; `labels` in the order in which they are printed."""

    subject: SubjectId
    labels: dict[str, str]
    values: Values


def rows(snapshot: Snapshot, kind: SubjectKind) -> Iterator[Measured]:
    """Every subject of this kind of which anything is known that is not too old; of jobs those that `jobs` shows."""
    if kind == "job":
        yield from jobs(snapshot)[0]
        return
    views = {view.id: view for view in snapshot.subjects}
    for name, groups in snapshot.readings.items():
        if kind_of(name) != kind:
            continue
        values = merged(groups, snapshot.at)
        if values:
            yield Measured(name, _labels(name, kind, views), values)


def jobs(snapshot: Snapshot) -> tuple[list[Measured], int]:
    """The jobs that have series of their own, and how many have none: no more than JOBS_SHOWN, those with most GPUs
    first, then those that came last. A job that is over has none and is not counted."""
    found = []
    for name, groups in snapshot.readings.items():
        if kind_of(name) == "job":
            values = merged(groups, snapshot.at)
            if values and values.get("job_ended") != 1:
                found.append(Measured(name, {JOB: job_label(name.partition(":")[2])}, values))
    found.sort(key=_importance)
    shown = {job.labels[JOB]: job for job in reversed(found)}
    kept = list(reversed(shown.values()))[:JOBS_SHOWN]
    return kept, len(found) - len(kept)


def job_label(name: str) -> str:
    """A job's name as a label: of letters that jobs' names have, and bounded."""
    return _STRANGE.sub("_", name[:JOB_LIMIT])


def _importance(job: Measured) -> tuple[float, float, str]:
    held, seen = job.values.get("job_gpus_held"), job.values.get("job_seen_seconds")
    return (
        -held if isinstance(held, int | float) else 0.0,
        seen if isinstance(seen, int | float) else float("inf"),
        job.subject,
    )


def gpu_labels(view: SubjectView) -> dict[str, str]:
    """The labels of a GPU of which nothing need be measured."""
    return {
        "gpu": view.id.partition(":")[2] if view.index is None else str(view.index),
        "uuid": view.uuid or "",
    }


def _labels(name: SubjectId, kind: SubjectKind, views: dict[SubjectId, SubjectView]) -> dict[str, str]:
    rest = name.partition(":")[2]
    match kind:
        case "gpu":
            return _gpu(rest, views)
        case "mig":
            parent, _, instance = rest.rpartition("/")
            return {**_gpu(parent, views), "mig": instance}
        case "port":
            device, _, port = rest.rpartition("/")
            return {"device": device, "port": port}
        case "node":
            return {}
        case _:
            return {kind: rest}


def _gpu(address: str, views: dict[SubjectId, SubjectView]) -> dict[str, str]:
    view = views.get(SubjectId(f"gpu:{address}"))
    return gpu_labels(view) if view is not None else {"gpu": address, "uuid": ""}
