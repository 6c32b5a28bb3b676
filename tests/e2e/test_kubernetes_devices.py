"""Device taints as part of a drain: on a real API server, which knows no DRA, and with DRA played beside it."""

from collections.abc import Iterator

import msgspec
import pytest

from gpuguard.actuators import gpus
from gpuguard.actuators.kubernetes.devices import Devices, Mode
from gpuguard.errors import ActionDeferred, ActionRefused
from gpuguard.model.ids import SubjectId
from gpuguard.runtime import targets
from gpuguard.web.kubernetes import Api
from tests.support.apiserver import ApiServer
from tests.support.played_dra import Played, playing
from tests.support.wishes import remedy, wish

pytestmark = pytest.mark.kubernetes

GPU = SubjectId("gpu:0000:4e:00.0")


@pytest.fixture
def dra() -> Iterator[tuple[Played, Api]]:
    with playing() as both:
        yield both


class Beside(Devices):
    """The devices of node gpu-a17, asked of the played server instead of the real one."""

    def __init__(self, api: Api, mode: Mode = "enforce") -> None:
        super().__init__("gpu-a17", mode)
        self._played = api
        self.failure: Exception | None = None

    def follow(self, action, verb, api, until):  # type: ignore[no-untyped-def]
        if self.failure is not None:
            raise self.failure
        return super().follow(action, verb, self._played, until)


def test_a_server_without_dra_takes_the_drain_all_the_same(apiserver: ApiServer) -> None:
    name = apiserver.node()
    here = apiserver.actuator(name, device_taints="enforce")
    for verb in ("drain", "release"):
        outcome = here.perform(wish(verb))
        assert outcome.result == "done"
        assert "no DeviceTaintRule" in outcome.message
    here.close()


def test_drain_and_release_take_the_devices_along(apiserver: ApiServer, dra: tuple[Played, Api]) -> None:
    played, api = dra
    name = apiserver.node()
    here = apiserver.actuator(name)
    here._devices = Beside(api)
    drain, release = (msgspec.structs.replace(wish(verb), subject=GPU) for verb in ("drain", "release"))
    assert here.perform(drain).message.endswith("1 of 1 devices newly tainted, effect NoExecute")
    assert here.perform(remedy("reboot")).result == "done"
    assert len(played.rules) == 1
    assert here.perform(drain).result == "done"
    assert here.perform(release).message.endswith("1 device taints lifted")
    assert played.rules == {}
    here.close()


def test_while_it_only_observes_the_devices_are_told_and_the_node_is_not_touched(
    apiserver: ApiServer, dra: tuple[Played, Api]
) -> None:
    played, api = dra
    name = apiserver.node()
    here = apiserver.actuator(name, device_taints="enforce")
    here._rehearsed = Beside(api, "inform")
    drain, release = (
        msgspec.structs.replace(wish(verb), subject=GPU, key=f"{verb}:7f3a:0:dry") for verb in ("drain", "release")
    )
    hands = targets.hands_of(here, None, gpus.Settings())
    outcome = hands.perform(drain)
    assert (outcome.result, outcome.node_state) == ("done", "dry_run")
    assert [rule["spec"]["taint"]["effect"] for rule in played.rules.values()] == ["None"]
    assert here.read_state().flags == ("OPEN",)
    assert hands.perform(release).message.endswith("1 device taints lifted")
    assert played.rules == {}
    here.close()


@pytest.mark.parametrize("verb", ["drain", "release"])
def test_what_a_server_that_was_away_still_owes_is_written_at_the_next_sending(
    apiserver: ApiServer, dra: tuple[Played, Api], verb: str
) -> None:
    played, api = dra
    here = apiserver.actuator(apiserver.node())
    here._devices = devices = Beside(api)
    wishes = {one: msgspec.structs.replace(wish(one), subject=GPU) for one in ("drain", "release")}  # type: ignore[arg-type]
    if verb == "release":
        assert here.perform(wishes["drain"]).result == "done"
    devices.failure = ActionDeferred("away", 5.0)
    outcome = here.perform(wishes[verb])
    assert (outcome.result, outcome.retry_after) == ("deferred", 5.0)
    devices.failure = None
    assert here.perform(wishes[verb]).result == "done"
    assert len(played.rules) == (verb == "drain")
    devices.failure = ActionRefused("no right")
    assert here.perform(wishes[verb]).message.endswith("without the devices' taint: no right")
    here.close()


def test_a_drain_that_is_not_ours_taints_nothing(apiserver: ApiServer, dra: tuple[Played, Api]) -> None:
    played, api = dra
    name = apiserver.node()
    apiserver.core.patch_node(name, {"spec": {"unschedulable": True}})
    here = apiserver.actuator(name)
    here._devices = Beside(api)
    assert here.perform(msgspec.structs.replace(wish("drain"), subject=GPU)).result == "foreign"
    assert played.asked == []
    here.close()
