"""One file a family of metrics, computed from a Snapshot.

What is measured and declared (a Quantity) is exported by `readings` and needs no file. To add what is computed, write
`metrics/<name>.py` with `families(snapshot)`; `runtime/plugins` finds it by its name. Names follow
`gpuguard_<what>_<unit>[_total]`, base units, at most six labels. What the machine cannot tell has no series: it is
never 0.
"""
