"""What is known of each subject now, with the labels that tell it apart.

Not a family: it stands beside those that are computed from readings. A series of a GPU carries `gpu`, the driver's
number or, where nobody told that, the PCI address, and `uuid`; what else is known of it is in gpuguard_gpu_info.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gpuguard.model.health import Snapshot, SubjectView
from gpuguard.model.ids import SubjectId, kind_of
from gpuguard.model.readings import SubjectKind, Values, merged


class Measured(NamedTuple):
    """One subject's newest values, less what is too old; `labels` in the order in which they are printed."""

    subject: SubjectId
    labels: dict[str, str]
    values: Values


def rows(snapshot: Snapshot, kind: SubjectKind) -> Iterator[Measured]:
    """Every subject of this kind of which anything is known that is not too old."""
    views = {view.id: view for view in snapshot.subjects}
    for name, groups in snapshot.readings.items():
        if kind_of(name) != kind:
            continue
        values = merged(groups, snapshot.at)
        if values:
            yield Measured(name, _labels(name, kind, views), values)


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
