"""How the node is wired: `build` merges what sysfs and the driver say into a graph; the rest asks the graph.

`matrix` reads anybody's `nvidia-smi topo -m`; `distance`, `islands`, `subsets`, `rings` and `near` answer; `profiles`
and `drift` compare with what the machine should be; the shelf `formats/` writes the graph for others. All is pure.
"""
