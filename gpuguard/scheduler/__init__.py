"""The scheduler core: which job runs where and when, decided by a pure function over what happened.

Read first: `cycle`, one pass; then `state`, what it folds; `placement` and `backfill`, which do the counting.
"""
