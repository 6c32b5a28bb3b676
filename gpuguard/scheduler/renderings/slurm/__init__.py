"""Slurm: lines of slurm.conf to include, and a script of sacctmgr that makes the QOS.

A queue is a partition, as only a partition refuses a job at submission for its time limit. A tier at a level is a QOS,
as only a QOS says who may stop whom. Both files may be used again at any time and then change nothing.

Source    slurm.conf(5) and sacctmgr(1) of Slurm 22.05
"""

import re
from itertools import chain

from gpuguard.errors import ConfigInvalid
from gpuguard.scheduler.renderings import Rendering, Wish
from gpuguard.scheduler.renderings.slurm import conf, qos
from gpuguard.scheduler.renderings.slurm.partitions import Partition, allowed, is_victim, partitions, priority
from gpuguard.scheduler.settings import Settings
from gpuguard.scheduler.tiers import bands, high_caps

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
NODES = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.,-]|\[[0-9][0-9,-]*\])*")


def render(settings: Settings, wish: Wish) -> Rendering:
    """Both files.

    Raises  ConfigInvalid with each name that Slurm would not take
    """
    places, every = partitions(settings), bands(settings)
    _check(settings, wish, places)
    caps = {} if wish.gpus is None else high_caps(settings, wish.gpus)
    files = {
        conf.FILE: "".join(f"{line}\n" for line in conf.lines(settings, wish, places, every)),
        qos.FILE: "".join(f"{line}\n" for line in qos.lines(settings, wish, places, every, caps)),
    }
    facts = {
        "partitions": [
            {"name": one.name, "pool": one.pool, "limit_s": one.limit, "qos": allowed(one, settings, every)}
            for one in places
        ],
        "qos": [
            {
                "name": band.name, "tier": band.tier, "level": band.level, "priority": priority(band, every),
                "preempt": band.takes, "preemptible": is_victim(band, settings), "gpus": caps.get(band.name),
                "limit_s": settings.tiers[band.tier].session,
            }
            for band in every
        ],
    }  # fmt: skip
    return Rendering(files=files, facts=facts)


def _check(settings: Settings, wish: Wish, places: list[Partition]) -> None:
    names = [one.name for one in places]
    twice = sorted({name for name in names if names.count(name) > 1})
    wrong = [f"{name!r} is queue and pool at once; rename the pool" for name in twice]
    for name in chain(names, settings.gpu_weights, *(re.split("[/:]", key.lstrip(":")) for key in settings.shares)):
        if not NAME.fullmatch(name):
            wrong.append(f"{name!r} is no name in Slurm; take letters, digits, - and _")
    for pool, nodes in wish.nodes.items():
        if pool not in settings.pools:
            wrong.append(f"there is no pool {pool!r}; there are {', '.join(settings.pools)}")
        if not NODES.fullmatch(nodes):
            wrong.append(f"{nodes!r} is no list of nodes; give it as Slurm has it, as node[01-16]")
    if wrong:
        raise ConfigInvalid(wrong)
