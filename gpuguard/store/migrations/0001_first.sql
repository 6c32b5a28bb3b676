-- The first schema: state, cursors, story, the lines that mattered, actions.
-- Times: *_mono in seconds since boot, *_utc in seconds since 1970.

-- The core's own state: 'subject/gpu:0000:1b:00.0', 'memory/fault_codes/gpu:...', 'incident/...', 'drain'.
CREATE TABLE state (
  key   TEXT PRIMARY KEY,
  value BLOB NOT NULL
) WITHOUT ROWID;

-- How far each source has read.
CREATE TABLE cursors (
  source   TEXT PRIMARY KEY,
  boot     TEXT NOT NULL,
  position TEXT NOT NULL
) WITHOUT ROWID;

-- What happened, in the order it was decided. Rows are added at the end and never changed.
CREATE TABLE story (
  seq          INTEGER PRIMARY KEY,
  at_boot      TEXT NOT NULL,
  at_mono      REAL NOT NULL,
  at_utc       REAL,
  at_estimated INTEGER NOT NULL,
  kind         TEXT NOT NULL,
  subject      TEXT NOT NULL,
  event_id     TEXT,
  cause        TEXT,
  text         TEXT NOT NULL,
  detail       TEXT NOT NULL
);
CREATE INDEX story_by_subject ON story (subject);
CREATE INDEX story_by_event ON story (event_id) WHERE event_id IS NOT NULL;

-- The lines that mattered, as the source read them. The id is the same each time the same line is read.
CREATE TABLE events (
  seq      INTEGER PRIMARY KEY,
  event_id TEXT NOT NULL UNIQUE,
  at_utc   REAL,
  body     TEXT NOT NULL
);

-- What must be done outside, and what came of it. `not_before` is an instant as JSON, NULL for at once; `at_utc` is when
-- the row last changed.
CREATE TABLE actions (
  key          TEXT PRIMARY KEY,
  seq          INTEGER NOT NULL UNIQUE,
  state        TEXT NOT NULL CHECK (state IN ('owed', 'done', 'foreign', 'refused', 'cancelled')),
  tries        INTEGER NOT NULL,
  not_before   TEXT,
  last_message TEXT NOT NULL,
  at_utc       REAL,
  body         TEXT NOT NULL
);
CREATE INDEX actions_owed ON actions (seq) WHERE state = 'owed';
