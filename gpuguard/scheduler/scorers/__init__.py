"""A shelf of terms of the score that a node gets for a job, one file each.

A file has `build(vacancy: Vacancy) -> Scorer` and one class that is a `gpuguard.scheduler.scoring.Scorer` with the
file's name: it sees what is free, is told of asks and changes, and says one integer for each node; less is better. It
commits nothing, draws no chance, and knows no other file here: which terms are asked, and in which order, a pool's
settings say. Proof beside it: a test with scores computed by hand.
"""

from importlib import import_module
from pkgutil import iter_modules

from gpuguard.errors import ConfigInvalid
from gpuguard.scheduler.scoring import Scorer, Vacancy


def names() -> tuple[str, ...]:
    """The terms there are, by file name."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def scorer(name: str, vacancy: Vacancy) -> Scorer:
    """The term of this name, on this cluster.

    Raises  ConfigInvalid for a name that is no file here
    """
    if name not in names():
        raise ConfigInvalid([f"terms: there is no scorer {name}; take some of {', '.join(names())}"])
    made: Scorer = import_module(f"{__name__}.{name}").build(vacancy)
    return made
