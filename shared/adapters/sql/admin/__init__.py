"""Work on whole databases: dump and load, integrity checks, retention, and the processes that use a database."""
