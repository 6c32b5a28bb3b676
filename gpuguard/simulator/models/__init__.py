"""A shelf of models of the world: one file for each part of it that a run can have or leave out.

A file has `Settings` (a frozen struct with defaults for all of it), `build(settings, dice) -> Model`, which raises
UsageError with a next step, and a docstring whose first line is what `--help` says of it and that tells under `Assumes`
what nobody measured. What is drawn for a job or a node hangs on its name and the seed alone (`chance`), never on what
the scheduler decided, so that two policies meet the same world. The files do not know each other; `..shelf` lists them
by name. Proof beside each: a small cluster with exact figures.
"""
