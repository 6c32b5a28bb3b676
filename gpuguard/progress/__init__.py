"""The job's side: how a training program tells that it gets on. Standard library only."""
