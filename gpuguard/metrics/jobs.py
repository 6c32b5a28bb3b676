"""Jobs on this node: how far they are, what holds them up, which GPUs are theirs, and what nobody owns.

What is measured of a job is exported from its declaration, by `readings`, for the same jobs: no more than 64, so that
nobody who can start jobs can fill a Prometheus. A job's phase is one of those with a meaning, or `other`: its own words
for it are without number. What no job owns is told for the node, and of a GPU only while there is some.

Reads     job_progress_seconds, job_progress_limit_seconds, job_phase and job_verdict of jobs; gpu_job, gpu_orphan_bytes
          and gpu_unowned_processes of GPUs
Units     seconds, bytes; 1 for what is so
"""

from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from gpuguard.metrics._rows import JOB, Measured, job_label, jobs, rows
from gpuguard.model.health import Snapshot
from gpuguard.model.jobs import Verdict
from gpuguard.model.readings import Value
from gpuguard.progress.wire import CHECKPOINT, COMPILE, EVALUATION, START, STEP

PHASES = (START, STEP, CHECKPOINT, EVALUATION, COMPILE)
VERDICTS: tuple[str, ...] = get_args(Verdict)
TEXT_LIMIT = 64  # letters of a name that somebody chose
SHARERS = 8  # jobs of one GPU that are told; more would be a driver's error


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """What is concluded of jobs, and whose each GPU is; families that have nothing to say are left out."""
    shown, left_out = jobs(snapshot)
    gpus = list(rows(snapshot, "gpu"))
    for family in (*_progress(shown), _allocation(gpus, shown), *_unowned(gpus)):
        if family.samples:
            yield family
    if shown:
        yield GaugeMetricFamily("gpuguard_jobs_not_shown", "Jobs here without series of their own.", value=left_out)


def _progress(shown: list[Measured]) -> Iterator[Metric]:
    since = GaugeMetricFamily(
        "gpuguard_job_progress_seconds", "Since the rank that is judged last showed progress, by what it does."
    )
    limit = GaugeMetricFamily(
        "gpuguard_job_progress_limit_seconds", "After how long without progress that counts as a hang."
    )
    verdicts = GaugeMetricFamily("gpuguard_job_verdict", "1 for what holds the job up, while anything does.")
    for job in shown:
        told = job.values.get("job_phase")
        phase = told if told in PHASES else "other" if told else ""
        for family in (since, limit):
            value = job.values.get(family.name.removeprefix("gpuguard_"))
            if isinstance(value, int | float):
                family.samples.append(Sample(family.name, {**job.labels, "phase": str(phase)}, value))
        verdict = job.values.get("job_verdict")
        if verdict in VERDICTS:
            verdicts.samples.append(Sample(verdicts.name, {**job.labels, "verdict": str(verdict)}, 1.0))
    yield from (since, limit, verdicts)


def _allocation(gpus: list[Measured], shown: list[Measured]) -> Metric:
    """Which job each GPU is of; one of which nothing else is known stands without its owner and name."""
    family = GaugeMetricFamily("gpuguard_gpu_allocation_info", "1 for each job that holds the GPU.")
    known = {job.labels[JOB]: job.values for job in shown}
    for gpu in gpus:
        told = gpu.values.get("gpu_job")
        names = [job_label(name.strip()) for name in told.split(",")] if isinstance(told, str) else []
        for name in list(dict.fromkeys(filter(None, names)))[:SHARERS]:
            values = known.get(name, {})
            labels = {
                **gpu.labels, JOB: name, "user": _text(values.get("job_user")), "name": _text(values.get("job_name")),
            }  # fmt: skip
            family.samples.append(Sample(family.name, labels, 1.0))
    return family


def _unowned(gpus: list[Measured]) -> Iterator[Metric]:
    for column, name, what in (
        ("gpu_orphan_bytes", "orphan_bytes", "Memory held by processes that are dead, or whose job is over"),
        (
            "gpu_unowned_processes",
            "unowned_processes",
            "Processes of no job, or of one that was given other GPUs",
        ),
    ):
        told = [(gpu, value) for gpu in gpus if isinstance(value := gpu.values.get(column), int | float)]
        whole = GaugeMetricFamily(f"gpuguard_{name}", f"{what}, on all GPUs.")
        each = GaugeMetricFamily(f"gpuguard_gpu_{name}", f"{what}; of a GPU that has any.")
        if told:
            whole.add_metric((), sum(value for _, value in told))
        each.samples += [Sample(each.name, gpu.labels, value) for gpu, value in told if value]
        yield from (whole, each)


def _text(value: Value) -> str:
    """Words that somebody chose, as a label: printable, and bounded."""
    told = value[:TEXT_LIMIT] if isinstance(value, str) else ""
    return "".join(letter if letter.isprintable() else "_" for letter in told)
