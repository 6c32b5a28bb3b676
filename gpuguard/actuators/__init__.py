"""One file a place that actions go to.

To add one, write `actuators/<name>.py` with a frozen `Settings` and `build(settings)` that returns a `ports.Actuator`
whose `name` is the file's. It performs the closed list of verbs in `model/actions.py` on its own node and on no other,
asks `custody.ownership` before each write, ends within its deadline, and answers with an `Outcome` whatever happens.
Its proof: a world in tests/support/custody_worlds.py, by which tests/contract/actuators and
tests/property/test_custody_model.py take it in, and the real service in tests/e2e.

`TARGETS` are those that a site may choose as `[actuator] target`. `BESIDE` are no targets: `delegate` only carries an
action to the process that has the right to perform it; `processes` and `gpus` stand beside a real target, the one ends
what is left of its jobs, the other tests and resets GPUs while its drain stands. The contract suite holds the index to
the folder.
"""

TARGETS = ("bundled", "dry_run", "slurm")
BESIDE = ("delegate", "gpus", "processes")
