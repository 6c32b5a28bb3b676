"""What Volcano is told is YAML of its own words and says the same as the settings."""

import textwrap

import pytest

from gpuguard.errors import ConfigInvalid
from gpuguard.scheduler.renderings import Wish, volcano
from gpuguard.scheduler.settings import Pool, Preemption, Queue, Settings
from gpuguard.scheduler.tiers import bands
from tests.support.yaml_subset import Yaml, read

# Of the CRD of Volcano 1.10, scheduling.volcano.sh/v1beta1 Queue.
SPEC = {
    "weight", "capability", "reclaimable", "extendClusters", "guarantee", "affinity", "type", "parent", "deserved",
    "priority", "dequeueStrategy",
}  # fmt: skip


def _documents(settings: Settings) -> list[dict[str, Yaml]]:
    """The objects; the configuration inside of one is read too."""
    found: list[dict[str, Yaml]] = []
    for text in volcano.render(settings, Wish()).files["gpuguard-volcano.yaml"].split("---\n"):
        head, bar, inner = text.partition(": |\n")
        document = read(head + ": text\n" if bar else head)
        assert isinstance(document, dict)
        found.append({**document, "inner": read(textwrap.dedent(inner))} if bar else document)
    return found


def _of(kind: str, settings: Settings) -> dict[str, dict[str, Yaml]]:
    return {
        str(document["metadata"]["name"]): document
        for document in _documents(settings)
        if document["kind"] == kind and isinstance(document["metadata"], dict)
    }


def _plugins(settings: Settings) -> list[dict[str, Yaml]]:
    (config,) = _of("ConfigMap", settings).values()
    inner = config["inner"]
    assert isinstance(inner, dict)
    assert isinstance(inner["tiers"], list)
    return [
        plugin
        for tier in inner["tiers"] if isinstance(tier, dict) and isinstance(tier["plugins"], list)
        for plugin in tier["plugins"] if isinstance(plugin, dict)
    ]  # fmt: skip


def test_queues_have_words_of_the_crd_only() -> None:
    queues = _of("Queue", Settings())
    assert list(queues) == ["trial", "training", "urgent", "interactive", "background"]
    for queue in queues.values():
        assert queue["apiVersion"] == "scheduling.volcano.sh/v1beta1"
        spec = queue["spec"]
        assert isinstance(spec, dict)
        assert set(spec) <= SPEC
        assert isinstance(spec["weight"], int)
        assert spec["reclaimable"] is False
    assert queues["background"]["spec"] == {
        "weight": 1, "reclaimable": False, "capability": {"nvidia.com/gpu": "0"},
        "affinity": {"nodeGroupAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ["interactive"]}},
    }  # fmt: skip


def test_a_queue_has_its_cap_and_its_nodes() -> None:
    settings = Settings(queues={"training": Queue(gpus=64)}, pools={"training": Pool()})
    (training,) = (queue["spec"] for name, queue in _of("Queue", settings).items() if name == "training")
    assert isinstance(training, dict)
    assert training["capability"] == {"nvidia.com/gpu": "64"}


def test_a_class_for_each_band_in_the_same_order() -> None:
    classes = _of("PriorityClass", Settings())
    every = bands(Settings())
    assert list(classes) == [band.name for band in every]
    values = [classes[band.name]["value"] for band in every]
    assert values == sorted(values, key=lambda value: -int(str(value)))
    for band in every:
        policy = "PreemptLowerPriority" if band.takes else "Never"
        assert classes[band.name]["preemptionPolicy"] == policy
        assert ("never stopped" in str(classes[band.name]["description"])) != band.victim


def test_neither_gangs_nor_shares_stand_in_the_way_of_the_classes() -> None:
    """As Volcano is: gang saves whole gangs, drf stops equals, enqueue keeps out who would stop others."""
    plugins = {str(plugin["name"]): plugin for plugin in _plugins(Settings())}
    assert plugins["gang"]["enablePreemptable"] is False
    assert plugins["drf"]["enablePreemptable"] is False
    assert plugins["sla"]["arguments"] == {"sla-waiting-time": "336h"}
    assert "proportion" not in plugins
    text = volcano.render(Settings(), Wish()).files["gpuguard-volcano.yaml"]
    assert 'actions: "allocate, preempt, backfill"' in text


def test_packing_follows_the_pool_of_training() -> None:
    assert "binpack" in {plugin["name"] for plugin in _plugins(Settings())}
    spread = Settings(pools={"training": Pool(placement="spread"), "interactive": Pool()})
    assert "binpack" not in {plugin["name"] for plugin in _plugins(spread)}


def test_without_preemption_nothing_preempts() -> None:
    settings = Settings(preemption=Preemption(enabled=False))
    text = volcano.render(settings, Wish()).files["gpuguard-volcano.yaml"]
    assert 'actions: "enqueue, allocate, backfill"' in text
    assert {str(row["preemptionPolicy"]) for row in _of("PriorityClass", settings).values()} == {"Never"}


def test_what_it_cannot_do_is_told() -> None:
    text = volcano.render(Settings(), Wish(gpus=8)).files["gpuguard-volcano.yaml"]
    for words in ("no backfill by walltime", "no fair share that remembers", "no cap on the share of the high level"):
        assert words in text


def test_every_name_that_kubernetes_would_not_take_is_told_at_once() -> None:
    with pytest.raises(ConfigInvalid) as error:
        volcano.render(Settings(queues={"Trial": Queue(), "background": Queue()}), Wish())
    assert len(error.value.mistakes) == 2
