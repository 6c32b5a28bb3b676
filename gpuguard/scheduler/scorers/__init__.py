"""A shelf of terms of the score that a node gets for a job, one file each.

A file has `build(vacancy: Vacancy) -> Scorer` and one class that is a `gpuguard.scheduler.scoring.Scorer` with the
file's name: it sees what is free, is told of asks and changes, and says one integer for each node; less is better. It
commits nothing, draws no chance, and knows no other file here: which terms are asked, and in which order, a pool's
settings say. Proof beside it: a test with scores computed by hand.
"""
