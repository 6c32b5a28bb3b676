"""A trace knows no limits of queues."""

from gpuguard.scheduler.settings import Queue, Settings
from gpuguard.simulator.policies import policies, unlimited


def test_queues_lose_their_limits_and_keep_their_weights() -> None:
    site = Settings(queues={"small": Queue(limit=5, gpus=8, weight=2.0)})
    assert unlimited(site) == {"small": Queue(weight=2.0)}


def test_no_policy_refuses_a_walltime_that_was_guessed() -> None:
    for settings in policies().values():
        assert all(queue.limit is queue.gpus is None for queue in settings.queues.values())
