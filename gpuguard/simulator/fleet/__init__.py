"""A fleet of nodes that fail as real ones do, and what gpuguard makes of it.

`faults` and `noise` draw what happens, by the recipe; `lines` are the words in which a driver tells it. `node` is a
machine and what its sources would see, `agent` the core on it with its loop, `scheduler` what holds the drains and the
fleet's book, `people` who repair. `world` lets all of it happen in order (read it first), `rhythm` says which looks may
be skipped, `score` counts. `policies` are what to compare. Chance is `simulator.chance`'s alone: one seed, one course.
"""
