"""Whatever a control group is called, the answer is well-formed."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.jobs import ID_LIMIT
from gpuguard.sweeping.owners import owner_of

JOB = re.compile(rf"(slurm|kubernetes|gpuguard|systemd|docker)/[A-Za-z0-9._@-]{{1,{ID_LIMIT}}}")
HEX = "0123456789abcdef" * 4
# Parts of real paths in any order, and parts that are anything.
WORDS = st.sampled_from([
    "system.slice", "slurmstepd.scope", "n1_slurmstepd.scope", "slurm", "uid_1000", "job_7", "step_0", "step_batch",
    "task_0", "kubepods", "kubepods.slice", "kubelet-kubepods.slice", "burstable", "podabc", HEX, "docker",
    f"cri-containerd-{HEX}.scope", "kubepods-pod1_2.slice", f"kubepods-besteffort-poda.slice:cri-containerd:{HEX}",
    f"libpod-{HEX}.scope", "gpuguard-job-5.scope", "user-1000.slice", "user@1000.service", "session-1.scope",
    "train.service", "..", "",
])  # fmt: skip
PARTS = st.one_of(WORDS, st.text(max_size=20), st.builds("{}{}".format, WORDS, st.text(max_size=3)))
PATHS = st.lists(PARTS, max_size=12).map("/".join)
LINES = st.one_of(st.text(max_size=60), st.builds("{}:{}:/{}".format, st.integers(0, 13), st.text(max_size=8), PATHS))


@given(st.lists(LINES, max_size=16).map("\n".join), st.dictionaries(
    st.sampled_from(["SLURM_JOB_ID", "SLURM_STEP_ID", "HOME"]), st.one_of(st.text(max_size=12), st.integers().map(str))
))  # fmt: skip
def test_it_never_fails_and_every_name_is_one(text: str, variables: dict[str, str]) -> None:
    owner = owner_of(text, variables)
    assert owner.job is None or JOB.fullmatch(owner.job)
    assert re.fullmatch(r"[A-Za-z0-9_.+-]{0,64}", owner.part)
    assert owner.user is None or 0 <= owner.user < 10**10
    assert owner.job is not None or owner.vouched


@given(PATHS)
def test_below_a_users_own_manager_no_scheduler_is_believed(path: str) -> None:
    job = owner_of(f"0::/user.slice/user-1000.slice/user@1000.service/{path}".replace("\n", "")).job
    assert job is None or job.split("/")[0] in ("systemd", "docker")


@given(PATHS)
def test_a_part_belongs_to_a_scheduler(path: str) -> None:
    owner = owner_of(f"0::/{path}".replace("\n", ""))
    assert not owner.part or (owner.job or "").split("/")[0] in ("slurm", "kubernetes")
