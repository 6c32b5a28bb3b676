"""The policies to compare: ours, and two that the field is full of. Detection is the same in all of them.

    gpuguard       as it ships: what is beyond doubt drains, people repair, and what came back shows that it is well
    any-xid        every Xid takes its node out: the policy `strict`
    reboot-clears  whatever drained a node, a robot reboots it, and the reboot clears all: no proof, no probation; after
                   five reboots in seven days a person repairs

Source  of the last two: peers as read in their sources (a new boot is "healthy" for every check; after five
        remediations in seven days the vendor is called)
"""

import msgspec

from gpuguard.health import policy
from gpuguard.model.units import Seconds
from gpuguard.simulator.fleet.faults import DAY


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How a fleet is run. `robot` reboots what was drained `robot_after` its drain, until it did so `robot_tries` times
    within `robot_within`. Units: seconds"""

    name: str
    core: policy.Settings
    robot: bool = False
    robot_after: float = 600.0
    robot_tries: int = 5
    robot_within: float = 7 * DAY


DEFAULT = "gpuguard"
POLICIES: dict[str, Policy] = {
    DEFAULT: Policy(name=DEFAULT, core=policy.Settings(mode="drain")),
    "any-xid": Policy(name="any-xid", core=policy.Settings(mode="drain", name="strict")),
    "reboot-clears": Policy(
        name="reboot-clears",
        robot=True,
        core=policy.Settings(
            mode="drain", clean_for=Seconds(0.0), clean_passes=1, probation=Seconds(0.0), releases_a_day=1000
        ),
    ),
}
