-- An action may also end as held (the fleet's budget forbids it) or failed (a test found a fault). SQLite cannot change
-- a CHECK, so the table is made anew.
CREATE TABLE actions_now (
  key          TEXT PRIMARY KEY,
  seq          INTEGER NOT NULL UNIQUE,
  state        TEXT NOT NULL
               CHECK (state IN ('owed', 'done', 'foreign', 'refused', 'held', 'failed', 'cancelled')),
  tries        INTEGER NOT NULL,
  not_before   TEXT,
  last_message TEXT NOT NULL,
  at_utc       REAL,
  body         TEXT NOT NULL
);
INSERT INTO actions_now (key, seq, state, tries, not_before, last_message, at_utc, body)
  SELECT key, seq, state, tries, not_before, last_message, at_utc, body FROM actions;
DROP TABLE actions;
ALTER TABLE actions_now RENAME TO actions;
CREATE INDEX actions_owed ON actions (seq) WHERE state = 'owed';
