"""What the child that speaks with nv-hostengine is told, and what it says."""

import msgspec


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bindings and the host engine are, and what is to be watched there; the child's only argument.

    `address` is HOST:PORT, or the path of a socket where `unix` is true. `device` and `profiling` are numbers of
    fields; of `profiling`, `core` is what is tried where the GPUs cannot watch all of it together. Units: seconds
    """

    bindings: str
    address: str
    unix: bool
    device: tuple[int, ...]
    profiling: tuple[int, ...]
    core: tuple[int, ...]
    every: float
    connect_within: float


class EntityAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The newest values of one GPU by the number of the field, without blanks, each with its age in seconds.

    `instance` is NVML's number of a GPU instance where it is about that.
    """

    pci: str
    values: dict[int, tuple[int | float | str, float]]
    instance: int | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs and GPU instances that the host engine knows. `error` is what went wrong; the child ends after it.

    `unprofiled` says why the profiling fields are not watched, '' where they are.
    """

    entities: tuple[EntityAnswer, ...] = ()
    error: str = ""
    unprofiled: str = ""


# What the parent asks; there is nothing else to ask.
READ = b"read"
