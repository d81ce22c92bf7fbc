"""Commands for operators of a cluster: backup, restore, database checks and copies, migrations, keys and settings."""
