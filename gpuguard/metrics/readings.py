"""Everything that is measured and declared: one family for each metric that a declaration names.

Whoever declares a Quantity has it exported; nothing is to be written here. Absent, unknown and old values have no
series.

Reads     the readings of a Snapshot and the declarations beside them
Units     those of the declaration, which are base units
"""

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from gpuguard.metrics._rows import Measured, rows
from gpuguard.model.health import Snapshot
from gpuguard.model.readings import Quantity, SubjectKind


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Each exported quantity of each subject, in the order of the declarations."""
    found: dict[str, Metric] = {}
    by_kind: defaultdict[SubjectKind, list[tuple[Quantity, Metric]]] = defaultdict(list)
    for quantity in snapshot.quantities:
        name = quantity.exported
        if name is not None:
            family = found.setdefault(name, Metric(name, quantity.help, quantity.kind))
            by_kind[quantity.of].append((quantity, family))
    for kind, declared in by_kind.items():
        for measured in rows(snapshot, kind):
            for quantity, family in declared:
                _add(family, quantity, measured)
    for family in found.values():
        if family.samples:
            yield family


def _add(family: Metric, quantity: Quantity, measured: Measured) -> None:
    value = measured.values.get(quantity.name)
    name = f"{family.name}_total" if quantity.kind == "counter" else family.name
    if isinstance(value, int | float):
        labels = {**measured.labels, **quantity.labels} if quantity.labels else measured.labels
        family.samples.append(Sample(name, labels, value))
    elif isinstance(value, tuple) and quantity.each:
        parts = zip(value[::2], value[1::2], strict=False) if quantity.keyed else enumerate(value)
        for place, part in parts:
            if isinstance(part, int | float):
                labels = {**measured.labels, **quantity.labels, quantity.each: str(place)}
                for label, column in quantity.beside.items():
                    labels[label] = _beside(measured, column, place)
                family.samples.append(Sample(name, labels, part))


def _beside(measured: Measured, column: str, place: int | str | float | None) -> str:
    """What another column has at this place; nothing where it has nothing."""
    values = measured.values.get(column)
    if not (isinstance(values, tuple) and isinstance(place, int) and place < len(values)):
        return ""
    value = values[place]
    return "" if value is None else str(value)
