"""Volcano on Kubernetes: queues, priority classes and the scheduler's configuration, as one YAML for `kubectl apply`.

A queue of ours is a Queue; a pool with nodes of its own and the tier without GPUs are Queues too, as only a Queue says
on which nodes a job runs and what it may not have. A tier at a level is a PriorityClass.

Source    Volcano 1.10 and later: the CRD scheduling.volcano.sh/v1beta1 Queue, the plugins' arguments and
          docs/user-guide/how_to_use_cdp_plugin.md; Kubernetes, scheduling.k8s.io/v1 PriorityClass
"""

import re
from collections.abc import Iterator, Mapping
from textwrap import wrap

from gpuguard.errors import ConfigInvalid
from gpuguard.scheduler.renderings import Rendering, Wish
from gpuguard.scheduler.settings import HOUR, MINUTE, Settings
from gpuguard.scheduler.tiers import Band, bands, home, own_pools

FILE = "gpuguard-volcano.yaml"
WIDTH = 118
GPU = "nvidia.com/gpu"
# Where the charts of Volcano put its scheduler and look for its configuration.
NAMESPACE, CONFIG = "volcano-system", "volcano-scheduler-configmap"
# Values of priority classes; those of Kubernetes' own parts begin at a thousand million.
STEP = 1000
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

CANNOT = (
    "gangs are stopped pod by pod and only within one Queue: an urgent job takes nothing from the queue training",
    "no time limit of a queue: a job's own activeDeadlineSeconds is all there is, and nobody refuses one without",
    "no backfill by walltime: the action backfill places pods that ask for nothing; no plan and no forecast of a start",
    "no fair share that remembers: drf compares what users hold now, and forgets it at once; types of GPU weigh alike",
    "no cap on the share of the high level: only who may use its classes can be limited, by a ResourceQuota",
    "no age in the order: equal jobs go by drf, then by time, and a Queue of higher priority always goes first",
    "no spreading in one pool and packing in another: the scorers are the same for all nodes",
    "no bound on the GPUs stopped in an hour, no least work lost, and no extension after a checkpoint",
)


def render(settings: Settings, wish: Wish) -> Rendering:
    """The file.

    Raises  ConfigInvalid with each name that Kubernetes would not take
    """
    every, queues = bands(settings), list(_queues(settings))
    _check(settings, [name for name, *_ in queues])
    documents = [
        *(_queue(settings, *queue) for queue in queues),
        *(_priority_class(settings, band, every) for band in every),
        _scheduler(settings),
    ]
    head = "\n".join(_head(settings, wish))
    text = head + "\n" + "---\n".join("".join(f"{line}\n" for line in document) for document in documents)
    facts = {
        "queues": [
            {"name": name, "pool": pool, "limit_s": limit, "gpus": gpus} for name, pool, limit, _, gpus in queues
        ],
        "priority_classes": [
            {
                "name": band.name, "tier": band.tier, "level": band.level, "value": _value(band, every),
                "preempts": bool(band.takes), "preemptible": _is_victim(band, settings),
            }
            for band in every
        ],
        "cannot": list(CANNOT),
    }  # fmt: skip
    return Rendering(files={FILE: text}, facts=facts)


Row = tuple[str, str, int | None, float, int | None]
"""A Queue: its name, pool, longest run in seconds, hours by which it goes first, and most GPUs."""


def _queues(settings: Settings) -> Iterator[Row]:
    for name, queue in settings.queues.items():
        yield name, home(settings), queue.limit, queue.weight, queue.gpus
    for pool, session in own_pools(settings).items():
        yield pool, pool, session, 0.0, None
    for tier, rule in settings.tiers.items():
        if not rule.gpus:
            yield tier, home(settings), None, 0.0, 0


def _check(settings: Settings, queues: list[str]) -> None:
    wrong = [
        f"{name!r} would be two Queues; rename the queue or the pool"
        for name in sorted({*queues})
        if queues.count(name) > 1
    ]
    for name in [*queues, *settings.pools]:
        if not NAME.fullmatch(name):
            wrong.append(f"{name!r} is no name in Kubernetes; take small letters, digits and -")
    if wrong:
        raise ConfigInvalid(wrong)


def _is_victim(band: Band, settings: Settings) -> bool:
    return band.victim and settings.preemption.enabled


def _value(band: Band, every: tuple[Band, ...]) -> int:
    """Higher is better here."""
    return (max(other.rank for other in every) - band.rank + 1) * STEP


def _said(text: str, mark: str = "# ") -> list[str]:
    return [mark + line for line in wrap(text, WIDTH - len(mark), break_on_hyphens=False)]


def _listed(items: tuple[str, ...]) -> Iterator[str]:
    for item in items:
        first, *rest = _said(item, "#   ")
        yield "# - " + first.removeprefix("#   ")
        yield from rest


def _head(settings: Settings, wish: Wish) -> Iterator[str]:
    yield from _said(
        f"{FILE}: tiers, queues and levels of gpuguard's scheduler for Volcano 1.10 and later. Written by `gpuguard "
        "scheduler render --for volcano`: write it anew rather than edit it; `kubectl apply -f` may be done again."
    )
    yield from _said("What a job must say by itself:")
    rule, cores = settings.preemption, settings.cores_per_gpu
    words = [
        "queue and priorityClassName: one of each below",
        "activeDeadlineSeconds in the template of its pods: no more than its Queue's limit, written there",
        f"at least {cores:g} CPUs for each {GPU}; a whole number of GPUs, unless the tier may share one (deviceshare)",
    ]
    if rule.enabled:
        words.append(
            "if it resumes from checkpoints, and only then, a class of resumable-* or batch-*, and on its pods the "
            f'label volcano.sh/preemptable: "true", the annotation volcano.sh/cooldown-time: '
            f'"{rule.least_run // MINUTE}m" and '
            f"terminationGracePeriodSeconds: {rule.grace}; a pod without the label is never stopped, whatever its class"
        )
    yield from _listed(tuple(words))
    yield from _said("What Volcano cannot do of it:")
    yield from _listed(CANNOT)
    if wish.gpus is not None:
        yield from _said(f"(So of {wish.gpus} GPUs, nothing keeps the high level to {settings.high_share:.0%}.)")


def _queue(
    settings: Settings, name: str, pool: str, limit: int | None, weight: float, gpus: int | None
) -> Iterator[str]:
    if limit is not None:
        yield f"# Limit: activeDeadlineSeconds {limit}"
    yield "apiVersion: scheduling.volcano.sh/v1beta1"
    yield "kind: Queue"
    yield "metadata:"
    yield f"  name: {name}"
    yield "spec:"
    yield "  weight: 1"
    if weight > 0:
        yield f"  priority: {max(1, round(weight))}"
    # The action reclaim is not configured: it stops by shares, whatever the priority.
    yield "  reclaimable: false"
    if gpus is not None:
        yield "  capability:"
        yield f'    {GPU}: "{gpus}"'
    others = sorted(own_pools(settings))
    if pool in others or others:
        yield "  affinity:"
        yield "    nodeGroupAffinity:" if pool in others else "    nodeGroupAntiAffinity:"
        yield "      requiredDuringSchedulingIgnoredDuringExecution:"
        yield from (f"        - {one}" for one in ([pool] if pool in others else others))


def _priority_class(settings: Settings, band: Band, every: tuple[Band, ...]) -> Iterator[str]:
    yield "apiVersion: scheduling.k8s.io/v1"
    yield "kind: PriorityClass"
    yield "metadata:"
    yield f"  name: {band.name}"
    yield f"value: {_value(band, every)}"
    # The policy says whether it may stop others; what keeps it from being stopped is the missing label.
    yield f"preemptionPolicy: {'PreemptLowerPriority' if band.takes else 'Never'}"
    yield f'description: "{_described(settings, band)}"'


def _described(settings: Settings, band: Band) -> str:
    tier = settings.tiers[band.tier]
    words = [f"{band.tier} at level {band.level}"]
    if not tier.gpus:
        words.append("no GPUs")
    words.append("may be stopped, as it resumes" if _is_victim(band, settings) else "never stopped")
    if tier.session is not None:
        words.append(f"ends after {tier.session // MINUTE} min")
    return ", ".join(words)


def _scheduler(settings: Settings) -> Iterator[str]:
    yield from _said(
        "Label the nodes of each pool volcano.sh/nodegroup-name=POOL. The scheduler reads this file again by itself."
    )
    yield "apiVersion: v1"
    yield "kind: ConfigMap"
    yield "metadata:"
    yield f"  name: {CONFIG}"
    yield f"  namespace: {NAMESPACE}"
    yield "data:"
    yield "  volcano-scheduler.conf: |"
    yield from (f"    {line}" if line else "" for line in _configuration(settings))


def _configuration(settings: Settings) -> Iterator[str]:
    stops = settings.preemption.enabled
    if stops:
        yield from _said(
            "enqueue is left out: it keeps a job out while the cluster is full, and a job that is out cannot stop "
            "others. The price is that pods of waiting jobs exist."
        )
    yield f'actions: "{"allocate, preempt, backfill" if stops else "enqueue, allocate, backfill"}"'
    yield "tiers:"
    yield "  - plugins:"
    yield "      - name: priority"
    yield from _said("gang would save every gang that has no pod to spare, and drf would stop equals.", "      # ")
    yield from _plugin("gang", {"enablePreemptable": "false"})
    yield "      - name: conformance"
    if stops:
        yield from _said("The least run before a job is stopped; the job names it, as told above.", "      # ")
        yield "      - name: cdp"
    yield from _said("After this wait a job has room kept for it: the one means against starving.", "      # ")
    yield from _plugin("sla", {}, {"sla-waiting-time": f'"{settings.order.patience // HOUR}h"'})
    yield "  - plugins:"
    yield from _plugin("drf", {"enablePreemptable": "false"})
    yield "      - name: predicates"
    yield from _said("capacity, not proportion: proportion deals the cluster out by the weights of Queues.", "      # ")
    yield "      - name: capacity"
    if own_pools(settings):
        yield "      - name: nodegroup"
    pool = settings.pools.get(home(settings))
    if pool is None or pool.placement == "pack":
        yield from _said(
            "Packed: whole nodes stay free for large jobs. nodeorder would spread, so that part is off.", "      # "
        )
        yield from _plugin("nodeorder", {}, {"leastrequested.weight": "0", "balancedresource.weight": "0"})
        weights = {"binpack.weight": "10", "binpack.cpu": "1", "binpack.memory": "1", "binpack.resources": GPU}
        yield from _plugin("binpack", {}, {**weights, f"binpack.resources.{GPU}": "10"})
    else:
        yield "      - name: nodeorder"


def _plugin(name: str, keys: Mapping[str, str], arguments: Mapping[str, str] | None = None) -> Iterator[str]:
    yield f"      - name: {name}"
    yield from (f"        {key}: {value}" for key, value in keys.items())
    if arguments:
        yield "        arguments:"
        yield from (f"          {key}: {value}" for key, value in arguments.items())
