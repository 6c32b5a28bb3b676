"""Terms of the score that a node gets for a job, one file each."""
