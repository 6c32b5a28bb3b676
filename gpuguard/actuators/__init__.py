"""One file a place that actions go to.

To add one, write `actuators/<name>.py` with a frozen `Settings` and `build(settings)` that returns a `ports.Actuator`
whose `name` is the file's. It performs the closed list of verbs in `model/actions.py` on its own node and on no other,
asks `custody.ownership` before each write, ends within its deadline, and answers with an `Outcome` whatever happens.
Its proof: a row in tests/contract/test_actuators.py, and the real service in tests/e2e.

`TARGETS` are those that a site may choose as `[actuator] target`. `BESIDE` are no targets: `delegate` only carries an
action to the process that has the right to perform it, and `processes` stands beside a real target and ends what is
left of its jobs. The contract suite holds the index to the folder.
"""

TARGETS = ("dry_run", "kubernetes", "slurm")
BESIDE = ("delegate", "processes")
