"""What of a pod tells about a job, whatever stands in it."""

import msgspec
import pytest

from gpuguard.model.jobs import REPORTED
from gpuguard.model.readings import plausible
from gpuguard.sources.kubernetes.pods import Facts, Pod, columns, facts

DECLARED = {quantity.name: quantity for quantity in REPORTED}
UTC = 1_700_000_000.0


def read(**parts: object) -> Facts:
    """The facts of a pod `train-x7z2q` of namespace `ml`; parts replace its parts."""
    pod = {
        "metadata": {"name": "train-x7z2q", "namespace": "ml", "uid": "0b3c"},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "4", "cpu": "8"}}}]},
        "status": {"phase": "Running", "startTime": "2023-11-14T22:00:00Z"},
    } | parts
    found = facts(msgspec.json.decode(msgspec.json.encode(pod), type=Pod))
    assert found is not None
    return found


def ended(**how: object) -> dict[str, object]:
    return {"phase": "Failed", "containerStatuses": [{"restartCount": 2, "state": {"terminated": how}}]}


def test_a_pod_that_runs() -> None:
    assert columns(read(), True, UTC) == {
        "job_alive": 1, "job_name": "train-x7z2q", "job_user": "ml", "job_state": "RUNNING", "job_restarts": 0,
        "job_gpus_asked": 4, "job_run_seconds": 800.0,
    }  # fmt: skip


def test_how_it_ended() -> None:
    row = columns(read(status=ended(exitCode=137, reason="OOMKilled")), False, UTC)
    assert (row["job_alive"], row["job_state"], row["job_exit_code"], row["job_exit_signal"]) == (0, "FAILED", 137, 0)
    assert (row["job_out_of_memory"], row["job_restarts"]) == (1, 2)
    well = columns(read(status=ended(exitCode=0) | {"phase": "Succeeded"}), False, UTC)
    assert (well["job_state"], well["job_exit_code"], well["job_out_of_memory"]) == ("SUCCEEDED", 0, 0)


def test_a_pod_that_was_deleted_while_it_ran_ended_nobody_knows_how() -> None:
    row = columns(read(), False, UTC)
    assert (row["job_alive"], row["job_state"]) == (0, "DELETED")
    assert not {"job_exit_code", "job_exit_signal", "job_out_of_memory", "job_run_seconds"} & row.keys()


def test_what_is_not_known_is_unknown() -> None:
    row = columns(read(), None, UTC)
    assert (row["job_alive"], row["job_state"], row["job_name"]) == (None, None, "train-x7z2q")


def test_one_that_is_told_to_end_still_lives() -> None:
    metadata = {"name": "t", "namespace": "ml", "uid": "0b3c", "deletionTimestamp": "2023-11-14T22:13:00Z"}
    row = columns(read(metadata=metadata), True, UTC)
    assert (row["job_alive"], row["job_state"]) == (1, "TERMINATING")


def test_a_static_pod_is_named_as_its_control_group_is() -> None:
    annotations = {"kubernetes.io/config.mirror": "77aa", "kubernetes.io/config.hash": "77aa", "big": "x" * 1000}
    pod = read(metadata={"name": "kube-proxy", "namespace": "kube-system", "uid": "0b3c", "annotations": annotations})
    assert (pod.key, pod.mirror) == ("77aa", True)


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({}, 0),
        ({"containers": [{}, {"resources": {}}, {"resources": {"limits": {"cpu": "1"}}}]}, 0),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": n}}} for n in ("1", 2)]}, 3),
        (
            {
                "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}],
                "initContainers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}],
            },
            8,
        ),
        (
            {
                "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}],
                "initContainers": [{"restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
            },
            3,
        ),
        ({"containers": [{"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]}, None),
        ({"containers": [{}], "resourceClaims": [{"name": "gpu"}]}, None),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1k"}}}]}, None),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "9" * 400}}}]}, None),
    ],
)
def test_gpus_that_it_was_given(spec: dict[str, object], gpus: int | None) -> None:
    assert read(spec=spec).gpus == gpus
    assert columns(read(spec=spec), True, UTC).get("job_gpus_asked") == gpus


def test_a_hostile_pod_is_a_row_like_any_other() -> None:
    metadata = {"name": "x\x1b[31m\n" + "y" * 5000, "namespace": "\u202e", "uid": "u" * 5000}
    spec = {"activeDeadlineSeconds": -5, "containers": None, "initContainers": None}
    for status in (
        ended(exitCode=-1, signal=-9, reason="\x00"), ended(exitCode=2**62, signal=2**62), {"containerStatuses": None},
        {"phase": "\x1b" * 9999, "containerStatuses": [{"restartCount": 2**62, "state": None}]},
    ):  # fmt: skip
        pod = read(metadata=metadata, spec=spec, status=status)
        assert len(msgspec.json.encode(pod)) < 1500
        for alive in (True, False, None):
            row = columns(pod, alive, UTC)
            assert all(plausible(DECLARED[column], value) for column, value in row.items() if value is not None)
            assert all(text.isprintable() for text in row.values() if isinstance(text, str))


def test_one_without_a_uid_is_none() -> None:
    assert facts(msgspec.convert({"metadata": {"name": "bookmark"}}, Pod)) is None
