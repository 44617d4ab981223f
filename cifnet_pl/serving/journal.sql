-- What undo and redo move along is the line; a change after an undo continues the line from there. Of the images in the
-- inbox those wait that were not taken away (gone is the time of that), are not learned, and were not learned and
-- forgotten by a version later than the one that was served when they were brought last (since). An image may be sent
-- by several paths (sent); name is the class that someone typed for it while version named was
-- served; what became of that class since is found by the versions.
BEGIN;
CREATE TABLE model (about TEXT NOT NULL, place INTEGER REFERENCES line);
CREATE TABLE version (number INTEGER PRIMARY KEY, stored INTEGER NOT NULL DEFAULT 1, change TEXT NOT NULL,
                      parent INTEGER REFERENCES version, counts TEXT NOT NULL, at TEXT NOT NULL);
CREATE TABLE line (place INTEGER PRIMARY KEY, version INTEGER NOT NULL REFERENCES version);
CREATE TABLE journal (number INTEGER PRIMARY KEY, at TEXT NOT NULL, what TEXT NOT NULL, serves INTEGER NOT NULL);
CREATE TABLE inbox (number INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT NOT NULL UNIQUE, name TEXT,
                    named INTEGER, since INTEGER NOT NULL, gone REAL);
CREATE TABLE sent (file TEXT NOT NULL, path TEXT NOT NULL, UNIQUE (file, path));
CREATE TABLE day (date TEXT PRIMARY KEY, asked INTEGER NOT NULL DEFAULT 0, unsure INTEGER NOT NULL DEFAULT 0,
                  corrected INTEGER NOT NULL DEFAULT 0);
PRAGMA user_version = {{ format }};
COMMIT;
