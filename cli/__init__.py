"""The command `orb`. It connects the parts of the program and is not a library.

`main` finds the command that the first argument names, and imports only the module of that command. Such a module has
`configure(parser)` and `run(arguments) -> int`.

- `local` runs crawls and clusters on this machine.
- `data` reads the folder of a crawl.
- `admin` maintains the database and keys of a cluster.
- `ctl` uses the REST API.
- `dev` has commands for developers.
- `terminal` has input, output and exit codes.

Errors that the user can fix are `Usage`, `Failed` and `Environment` (`terminal.exits`), `Transient` (an engine does not
answer) and `Unusable` (an engine cannot be used). `main` prints only their messages. An exception that is a bug keeps
its traceback.
"""
