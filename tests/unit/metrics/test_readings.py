"""What is declared is exported, as what it is and with the labels that tell it apart."""

import msgspec
import pytest
from prometheus_client.core import Metric

from gpuguard.metrics.readings import families
from gpuguard.model.health import Snapshot
from gpuguard.model.ids import SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Group, Quantity, SubjectKind, Value
from tests.support.snapshots import BOOT, DECLARED, GPU, NOW, full

UUID = "GPU-6a1d2c3b-0000-4000-8000-000000000001"


def snapshot(subject: str, value: Value, *declared: Quantity, at: Instant = NOW) -> Snapshot:
    values: dict[str, Value] = {quantity.name: value for quantity in declared}
    group = Group(source="nvml", rate="fast", at=at, valid_for=15.0, values=values)
    return msgspec.structs.replace(full(), readings={SubjectId(subject): {"nvml/fast": group}}, quantities=declared)


def quantity(name: str = "gpu_noise_hertz", of: SubjectKind = "gpu", **more: object) -> Quantity:
    return msgspec.convert({"name": name, "of": of, "unit": "hertz", "help": "How loud.", **more}, Quantity)


def exported(shown: Snapshot) -> dict[str, Metric]:
    return {family.name: family for family in families(shown)}


def samples(shown: Snapshot) -> list[tuple[str, dict[str, str], float]]:
    return [(s.name, dict(s.labels), s.value) for family in families(shown) for s in family.samples]


def test_a_gauge_of_a_gpu() -> None:
    shown = snapshot(GPU, 440.0, quantity())
    assert samples(shown) == [("gpuguard_gpu_noise_hertz", {"gpu": "5", "uuid": UUID}, 440.0)]
    family = exported(shown)["gpuguard_gpu_noise_hertz"]
    assert (family.type, family.documentation) == ("gauge", "How loud.")


def test_a_counter_is_typed_and_named_as_one() -> None:
    shown = snapshot(GPU, 3, quantity("gpu_knocks_total", kind="counter"))
    assert exported(shown)["gpuguard_gpu_knocks"].type == "counter"
    assert [name for name, _, _ in samples(shown)] == ["gpuguard_gpu_knocks_total"]


def test_a_value_of_each_link() -> None:
    shown = snapshot(GPU, (1, None, 0), quantity("nvlink_up", each="link"))
    assert [(labels["link"], value) for _, labels, value in samples(shown)] == [("0", 1), ("2", 0)]


def test_columns_of_one_metric_are_told_apart_by_their_labels() -> None:
    one, two = (quantity(f"noise_{side}", metric="noise", labels={"side": side}) for side in ("left", "right"))
    shown = snapshot(GPU, 1.0, one, two)
    assert list(exported(shown)) == ["gpuguard_noise"]
    assert [labels["side"] for _, labels, _ in samples(shown)] == ["left", "right"]


@pytest.mark.parametrize("value", [None, "", "N/A", (), (None, None)])
def test_what_is_not_known_has_no_series(value: Value) -> None:
    assert samples(snapshot(GPU, value, quantity(each="link"))) == []


def test_zero_is_a_value() -> None:
    assert [value for _, _, value in samples(snapshot(GPU, 0, quantity()))] == [0]


def test_what_is_too_old_has_no_series() -> None:
    assert samples(snapshot(GPU, 1.0, quantity(), at=Instant(boot=BOOT, mono=84.0))) == []
    assert len(samples(snapshot(GPU, 1.0, quantity(), at=Instant(boot=BOOT, mono=86.0)))) == 1


def test_text_and_what_is_not_to_be_exported_has_no_series() -> None:
    assert samples(snapshot(GPU, 1.0, quantity(metric=None), quantity("name", kind="text"))) == []


@pytest.mark.parametrize(
    ("subject", "of", "labels"),
    [
        ("node", "node", {}),
        ("mig:0000:4e:00.0/1", "mig", {"gpu": "5", "uuid": UUID, "mig": "1"}),
        ("port:mlx5_0/1", "port", {"device": "mlx5_0", "port": "1"}),
        ("disk:state", "disk", {"disk": "state"}),
        ("nvswitch:0000:a1:00.0", "nvswitch", {"nvswitch": "0000:a1:00.0"}),
        ("gpu:0000:4f:00.0", "gpu", {"gpu": "0000:4f:00.0", "uuid": ""}),  # nobody told who it is
    ],
)
def test_the_labels_of_each_kind_of_subject(subject: str, of: SubjectKind, labels: dict[str, str]) -> None:
    assert [found for _, found, _ in samples(snapshot(subject, 1, quantity(of=of)))] == [labels]


def test_of_two_sources_the_one_that_knows_is_shown() -> None:
    shown = snapshot(GPU, None, quantity())
    groups = shown.readings[GPU]
    known = msgspec.structs.replace(groups["nvml/fast"], source="dcgm", values={"gpu_noise_hertz": 7.0})
    both = msgspec.structs.replace(shown, readings={GPU: {"dcgm/fast": known, **groups}})
    assert [value for _, _, value in samples(both)] == [7.0]


# --- what is declared ------------------------------------------------------------------------------------------------

EXPORTED = [pytest.param(q, id=q.name) for q in DECLARED if q.exported is not None]


@pytest.mark.parametrize("declared", EXPORTED)
def test_a_declaration_holds_to_the_house(declared: Quantity) -> None:
    assert (declared.kind == "counter") == (declared.metric or declared.name).endswith("_total")
    assert declared.of != "process", "a process comes and goes, and its series would stay"
    assert declared.help.endswith(".")


@pytest.mark.parametrize("declared", EXPORTED)
def test_columns_that_share_a_metric_mean_the_same(declared: Quantity) -> None:
    others = [q for q in DECLARED if q.exported == declared.exported and q.name != declared.name]
    for other in others:
        assert (other.of, other.unit, other.kind, other.help, other.each) == (
            declared.of, declared.unit, declared.kind, declared.help, declared.each,
        )  # fmt: skip
        assert other.labels.keys() == declared.labels.keys()
        assert other.labels != declared.labels


@pytest.mark.parametrize("declared", EXPORTED)
def test_each_is_on_a_page_where_all_is_known(declared: Quantity) -> None:
    assert declared.exported in exported(full())
