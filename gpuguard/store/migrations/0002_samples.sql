-- The course of what was measured: one row a GPU and minute at the full rate, one row a GPU and hour of one-minute
-- aggregates. `start_utc` in seconds since 1970; `bytes` is what the body takes; `body` is told by store/samples.py.
CREATE TABLE samples (
  seq       INTEGER PRIMARY KEY,
  gpu       TEXT NOT NULL,
  grain     TEXT NOT NULL CHECK (grain IN ('full', 'minute')),
  start_utc REAL NOT NULL,
  bytes     INTEGER NOT NULL,
  body      BLOB NOT NULL,
  UNIQUE (gpu, grain, start_utc)
);
CREATE INDEX samples_by_age ON samples (grain, start_utc, bytes);
