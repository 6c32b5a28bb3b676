"""Verdicts on single GPUs for DRA, on a played API: which devices, which effect, and whose a rule is."""

import time
from collections.abc import Iterator

import msgspec
import pytest

from gpuguard.actuators.kubernetes.devices import DRIVER, Devices, Mode, Slices, devices_at, effect_of, rule_of, served
from gpuguard.errors import ActionDeferred, ActionRefused
from gpuguard.model.actions import Action, DrainVerb
from gpuguard.model.ids import SubjectId, TokenId
from gpuguard.runtime.clock import ManualClock
from gpuguard.web.kubernetes import Api
from tests.support.played_dra import RECORDED, ROOT, Played, playing

GPU = "gpu:0000:4e:00.0"


@pytest.fixture
def dra() -> Iterator[tuple[Played, Api]]:
    with playing() as both:
        yield both


def wish(verb: DrainVerb = "drain", subject: str = GPU, token: str = "7f3a", severe: bool = True) -> Action:
    return Action(
        key=f"{verb}:{token}", verb=verb, token=TokenId(token), subject=SubjectId(subject),
        reason=f"gpuguard:{token} gpu3 lost xid79", at=ManualClock().now(), severe=severe,
    )  # fmt: skip


def follow(api: Api, action: Action, mode: Mode = "enforce", node: str = "gpu-a17") -> str:
    assert action.verb in ("drain", "update_reason", "release", "adopt")
    return Devices(node, mode).follow(action, action.verb, api, time.monotonic() + 10.0)  # type: ignore[arg-type]


def test_a_gpu_is_tainted_and_given_back(dra: tuple[Played, Api]) -> None:
    played, api = dra
    assert follow(api, wish()) == "1 of 1 devices newly tainted, effect NoExecute"
    (rule,) = played.rules.values()
    assert (rule["apiVersion"], rule["kind"]) == ("resource.k8s.io/v1beta2", "DeviceTaintRule")
    assert rule["spec"] == {
        "deviceSelector": {"driver": "gpu.nvidia.com", "pool": "gpu-a17", "device": "gpu-3"},
        "taint": {"key": "gpuguard.io/unfit", "value": "7f3a", "effect": "NoExecute"},
    }
    assert follow(api, wish()) == "", "a second sending writes nothing"
    assert follow(api, wish("release")) == "1 device taints lifted"
    assert played.rules == {}
    assert follow(api, wish("release")) == ""


@pytest.mark.parametrize(
    ("mode", "severe", "effect"),
    [("inform", True, "None"), ("inform", False, "None"), ("enforce", False, "NoSchedule"),
     ("enforce", True, "NoExecute")],
)  # fmt: skip
def test_the_effect(mode: Mode, severe: bool, effect: str) -> None:
    assert effect_of(mode, severe=severe) == effect


def test_switched_off_nothing_is_asked(dra: tuple[Played, Api]) -> None:
    played, api = dra
    for verb in ("drain", "release"):
        assert follow(api, wish(verb), "off") == ""  # type: ignore[arg-type]
    assert played.asked == []


def test_a_server_without_the_kind(dra: tuple[Played, Api]) -> None:
    played, api = dra
    for versions in (None, (), ("v1alpha3",)):
        played.versions = versions
        assert follow(api, wish()) == "this API server has no DeviceTaintRule in resource.k8s.io v1beta2 or v1"
    assert {method for method, _ in played.asked} == {"GET"}


def test_the_newest_version_that_has_it(dra: tuple[Played, Api]) -> None:
    played, api = dra
    assert served(api, time.monotonic() + 5) == "v1beta2"
    played.versions = ("v1", "v1beta2")
    assert served(api, time.monotonic() + 5) == "v1"


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("0000:4e:00.0", ["gpu-3"]),
        ("00000000:4e:00.0", ["gpu-3"]),
        ("0000:52:00.0", ["gpu-2-mig-3g40gb-9-0", "gpu-2-mig-3g40gb-9-4"]),
        ("0000:df:00.0", ["gpu-7"]),  # not the gpu-3 of the generation before
        ("0001:4e:00.0", []),
    ],
)
def test_the_devices_of_a_gpu(address: str, names: list[str]) -> None:
    slices = msgspec.json.decode((RECORDED / "slices.json").read_bytes(), type=Slices).items or ()
    assert [device.name for device in devices_at(address, "gpu-a17", (one.spec for one in slices))] == names


def test_a_gpu_without_a_device_and_a_node(dra: tuple[Played, Api]) -> None:
    played, api = dra
    assert follow(api, wish(subject="gpu:0000:99:00.0")) == f"no device of {DRIVER} has the address 0000:99:00.0"
    assert follow(api, wish(subject="node")) == ""
    assert played.rules == {}


def test_the_drivers_own_taints_are_not_touched(dra: tuple[Played, Api]) -> None:
    played, api = dra
    follow(api, wish(subject="gpu:0000:1b:00.0"))
    follow(api, wish("release", subject="gpu:0000:1b:00.0"))
    assert {path for method, path in played.asked if method != "GET"} == {
        f"{ROOT}/v1beta2/devicetaintrules", next(path for method, path in played.asked if method == "DELETE"),
    }  # fmt: skip


def test_rules_of_others_stay(dra: tuple[Played, Api]) -> None:
    played, api = dra
    follow(api, wish(), node="gpu-b02")
    follow(api, wish(token="0001"))
    follow(api, wish())
    played.rules["an-admins"] = {"metadata": {"name": "an-admins", "labels": {}}}
    assert follow(api, wish("release")) == "1 device taints lifted"
    assert len(played.rules) == 3


def test_a_rule_that_somebody_changed_is_theirs(dra: tuple[Played, Api]) -> None:
    played, api = dra
    follow(api, wish())
    (rule,) = played.rules.values()
    rule["metadata"]["generation"] = 2
    assert follow(api, wish("release")) == "1 device taints were changed by somebody and stay"
    rule["metadata"] |= {
        "generation": 1,
        "annotations": {**rule["metadata"]["annotations"], "gpuguard.io/drain": "kim"},
    }
    assert follow(api, wish("release")) == "1 device taints were changed by somebody and stay"
    assert len(played.rules) == 1


def test_one_that_is_changed_while_it_is_deleted_is_looked_at_again(dra: tuple[Played, Api]) -> None:
    played, api = dra
    follow(api, wish())
    played.changed_between = True
    with pytest.raises(ActionDeferred, match="changed meanwhile"):
        follow(api, wish("release"))
    assert "stay" in follow(api, wish("release"))


@pytest.mark.parametrize(("status", "error"), [(403, ActionRefused), (500, ActionDeferred), (429, ActionDeferred)])
def test_a_server_that_says_no(dra: tuple[Played, Api], status: int, error: type[Exception]) -> None:
    played, api = dra
    played.status = status
    for verb in ("drain", "release"):
        with pytest.raises(error):
            follow(api, wish(verb))  # type: ignore[arg-type]


def test_names_are_those_that_the_api_takes() -> None:
    slices = msgspec.json.decode((RECORDED / "slices.json").read_bytes(), type=Slices).items or ()
    (device,) = devices_at("0000:4e:00.0", "gpu-a17", (one.spec for one in slices))
    for node in ("n", "n" * 253):
        rule = rule_of("v1", node, device, "7f3a", "gpuguard:7f3a gpu3 lost xid79", "None")
        assert len(rule["metadata"]["name"]) < 253
        assert all(len(value) <= 63 for value in rule["metadata"]["labels"].values())
    assert rule["metadata"]["name"] != rule_of("v1", "m", device, "7f3a", "r", "None")["metadata"]["name"]


def test_what_only_informed_stands_in_nobodys_way_when_the_site_acts(dra: tuple[Played, Api]) -> None:
    played, api = dra
    follow(api, wish(), "inform")
    assert follow(api, wish(), "enforce") == "1 of 1 devices newly tainted, effect NoExecute"
    assert [rule["spec"]["taint"]["effect"] for rule in played.rules.values()] == ["None", "NoExecute"]
    assert follow(api, wish("release")) == "2 device taints lifted"
