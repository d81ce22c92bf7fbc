"""Commands for operators of a cluster: backup and restore, database, migrations, keys, settings."""
