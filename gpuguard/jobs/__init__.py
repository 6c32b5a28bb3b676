"""Jobs on this node: whose GPU it is, what counts as progress, and why there is none.

`derive` is the function to read first: it concludes rows of jobs, ranks and GPUs from what sources measured. Checks in
`detectors/` judge those rows as they judge any other, and `gpuguard jobs` and `gpuguard hang` show them.
"""
