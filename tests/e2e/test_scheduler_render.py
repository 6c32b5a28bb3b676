"""A real Slurm takes what `gpuguard scheduler render --for slurm` writes for slurm.conf, and acts on it.

QOS live in slurmdbd, which this cluster does not have: what slurmctld takes only with it is left out here.
"""

import re
import subprocess
from collections.abc import Iterator

import pytest

from gpuguard.scheduler.renderings import Wish, slurm
from gpuguard.scheduler.settings import Settings
from tests.support.slurm import Cluster, running

pytestmark = pytest.mark.slurm

# Without slurmdbd slurmctld ends at a weight of GPUs, and at any of these.
NEEDS_DATABASE = ("AccountingStorage", "PriorityType=", "PreemptType=", "PreemptMode=")
WISH = Wish(gpus=12, memory=1000, nodes={"training": "node[1-2]", "interactive": "node3"})


class Ruled(Cluster):
    """A Slurm whose partitions and plan are as they are rendered."""

    def _configure(self) -> None:
        super()._configure()
        text = slurm.render(Settings(), WISH).files["gpuguard-slurm.conf"]
        text = re.sub(r' TRESBillingWeights="[^"]*"', "", text)
        kept = [line for line in text.splitlines() if not line.startswith(NEEDS_DATABASE)]
        (self.root / "rules.conf").write_text("\n".join(kept) + "\n")
        ours = {line.partition("=")[0] for line in kept if line and not line.startswith("#")}
        rest = [line for line in self.conf.read_text().splitlines() if line.partition("=")[0] not in ours]
        self.conf.write_text("\n".join([*rest, f"include {self.root}/rules.conf"]) + "\n")


@pytest.fixture(scope="module")
def ruled() -> Iterator[Ruled]:
    with running(Ruled) as cluster:
        yield cluster


def _submitted(cluster: Ruled, partition: str, limit: str, *options: str) -> subprocess.CompletedProcess[str]:
    job = ["sbatch", "--parsable", "-o", "/dev/null", "-p", partition, "-t", limit, *options, "--wrap", "sleep 60"]
    return subprocess.run(
        job, env=cluster.environ, cwd=cluster.root, capture_output=True, text=True, timeout=20, check=False
    )


@pytest.mark.parametrize(
    ("partition", "longest", "beyond"),
    [
        ("trial", "2:00:00", "2:01:00"), ("training", "7-0", "7-00:01"), ("urgent", "1-0", "1-00:01"),
        ("interactive", "1:00:00", "1:01:00"),
    ],
)  # fmt: skip
def test_a_job_beyond_its_queues_limit_is_refused_at_once(
    ruled: Ruled, partition: str, longest: str, beyond: str
) -> None:
    refused = _submitted(ruled, partition, beyond)
    assert refused.returncode != 0
    assert "Requested time limit is invalid" in refused.stderr
    taken = _submitted(ruled, partition, longest)
    assert taken.returncode == 0, taken.stderr
    ruled.client("scancel", taken.stdout.strip())


def test_a_job_gets_two_cores_and_its_memory_with_each_gpu(ruled: Ruled) -> None:
    job = _submitted(ruled, "training", "10", "--gres=gpu:2").stdout.strip()

    def record() -> str:
        return ruled.client("scontrol", "-o", "show", "job", job)

    ruled.until("the job runs", lambda: " JobState=RUNNING " in record())
    told = record()
    ruled.client("scancel", job)
    assert " NumCPUs=4 " in told
    assert "mem=2000M" in told
    assert re.search(r" NodeList=node[12] ", told)


def test_the_plan_is_as_it_was_written(ruled: Ruled) -> None:
    config = ruled.client("scontrol", "show", "config")
    rules = (ruled.root / "rules.conf").read_text()
    for line in rules.splitlines():
        key, equals, value = line.partition("=")
        if equals and key in {"SchedulerParameters", "SchedulerType", "PreemptExemptTime", "EnforcePartLimits"}:
            assert re.search(rf"^{key} += {re.escape(value)}$", config, re.MULTILINE)
    complaints = [line for line in (ruled.root / "log" / "slurmctld.log").read_text().splitlines() if "error:" in line]
    assert not [
        line
        for line in complaints
        if re.search("[Pp]artition|[Pp]arse|Unrecognized|invalid|twice", line) and "QOS" not in line
    ]
