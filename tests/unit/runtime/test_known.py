from argparse import Namespace
from pathlib import Path

import msgspec
import pytest

from gpuguard.errors import NotUnderstood, UsageError
from gpuguard.health.state import Health
from gpuguard.model.health import SubjectHealth
from gpuguard.model.ids import NODE, BootId, GpuSerial, GpuUuid, PciAddress, SubjectId, gpu, nvswitch
from gpuguard.model.instants import Instant
from gpuguard.runtime.known import find_subject, find_token, state_dir

NOW = Instant(boot=BootId("b"), mono=1.0)
UUID = GpuUuid("GPU-0a0b0c0d-1111-2222-3333-444455556666")
OLD = GpuUuid("GPU-99887766-1111-2222-3333-444455556666")
HERE = SubjectHealth(
    id=gpu(PciAddress("0000:3b:00.0")), since=NOW, pci=PciAddress("0000:3b:00.0"), uuid=UUID,
    serial=GpuSerial("1320221100123"), index=5,
)  # fmt: skip
AWAY = SubjectHealth(id=gpu(PciAddress("10000:af:00.0")), since=NOW, pci=PciAddress("10000:af:00.0"))
SWITCH = SubjectHealth(id=nvswitch(PciAddress("0000:c5:00.0")), since=NOW, pci=PciAddress("0000:c5:00.0"))
RETIRED = msgspec.structs.replace(HERE, uuid=OLD, serial=GpuSerial("77"), index=None)
HEALTH = Health(now=NOW, subjects={s.id: s for s in (HERE, AWAY, SWITCH)}, retired={OLD: RETIRED})


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("5", HERE), ("gpu5", HERE), ("3b:00", HERE), ("3B:00.0", HERE), ("0000:3b:00", HERE),
        ("00000000:3B:00.0", HERE),
        ("PCI:0000:3b:00", HERE), (UUID, HERE), (UUID.lower(), HERE), (UUID[:12], HERE), (UUID[4:14], HERE),
        ("1320221100123", HERE), ("gpu:0000:3b:00.0", HERE), (" 3b:00 ", HERE), ("10000:af:00.0", AWAY),
        ("c5:00", SWITCH), ("nvswitch:0000:c5:00.0", SWITCH), (OLD, RETIRED), ("77", RETIRED),
    ],
)  # fmt: skip
def test_a_subject_is_found_by_every_name_it_has(text: str, subject: SubjectHealth) -> None:
    assert find_subject(HEALTH, text) is subject


def job(name: str) -> SubjectHealth:
    return SubjectHealth(id=SubjectId(f"job:{name}"), since=NOW)


SLURM, CLAIMED, POD = job("slurm/81234"), job("claimed/0-night"), job("kubernetes/night")
JOBS = msgspec.structs.replace(HEALTH, subjects={**HEALTH.subjects, **{s.id: s for s in (SLURM, CLAIMED, POD)}})


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("slurm/81234", SLURM), ("job:slurm/81234", SLURM), ("81234", SLURM), ("claimed/0-night", CLAIMED),
        ("0-night", CLAIMED), ("5", HERE),
    ],
)  # fmt: skip
def test_a_job_is_found_by_its_id_and_by_its_own_word(text: str, subject: SubjectHealth) -> None:
    assert find_subject(JOBS, text) is subject


def test_two_jobs_of_one_name_are_both_named() -> None:
    with pytest.raises(NotUnderstood, match="any of job:claimed/0-night, job:kubernetes/night"):
        find_subject(JOBS, "night")


def test_a_job_without_a_story_is_not_taken_for_a_gpu() -> None:
    with pytest.raises(NotUnderstood, match="no job that anything ever stood against is called 'slurm/9' here; known"):
        find_subject(JOBS, "slurm/9")


def test_the_node_is_always_known() -> None:
    assert find_subject(HEALTH, "node").id == NODE


@pytest.mark.parametrize("text", ["", "4", "3b", "af:00", "GPU-", "GPU-0a0", "GPU-ffffffff", "1320221", "seventy"])
def test_what_names_nobody_is_refused_with_those_known(text: str) -> None:
    with pytest.raises(
        NotUnderstood, match=r"5 0000:3b:00\.0, .*0000:c5:00\.0 \(NVSwitch\).*GPU-99887766.*\(taken out\)"
    ):
        find_subject(HEALTH, text)


@pytest.mark.parametrize(
    ("text", "token"),
    [("7f3a", "7f3a"), ("gpuguard:7f3a", "7f3a"), ("7F3A", None), ("7f3", None), ("7f3ab", None), ("node", None)],
)
def test_a_token_is_four_digits(text: str, token: str | None) -> None:
    assert find_token(text) == token


def test_this_machines_memory_is_not_a_recorded_ones(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[agent]\nstate_dir = "/named"\n')
    usual = Namespace(root="/", state_dir=None, config=None)
    assert state_dir(usual) == Path("/var/lib/gpuguard")
    recorded = Namespace(root="/recorded", state_dir=None, config=None)
    with pytest.raises(UsageError, match=r"--root /recorded --state-dir DIR"):
        state_dir(recorded)
    assert state_dir(Namespace(root="/recorded", state_dir="/s", config=None)) == Path("/s")
    named = Namespace(root="/recorded", state_dir=None, config=str(tmp_path / "config.toml"))
    assert state_dir(named) == Path("/named")
