"""How the node is wired: `build` merges what sysfs and the driver say into a graph; the rest asks the graph.

`matrix` reads anybody's `nvidia-smi topo -m`; `distance`, `islands`, `subsets`, `rings`, `near` and `placement` answer;
`profiles` and `learning` tell what the machine should be, `drift` what differs; the shelf `formats/` writes the graph
for others, `picture` and `layout` are what its drawings have in common. All is pure.
"""
