"""The command `orb`. It puts the parts of the program together and has no code for use as a library.

`main` finds the command that the first argument names and imports only that one. A command is a module with
`configure(parser)` and `run(arguments) -> int`. `local` runs crawls and clusters on this machine. `data` reads a
crawl's folder. `admin` maintains a cluster's database and keys. `ctl` uses the REST API. `dev` serves developers.
`terminal` has input, output and exit codes.

An error that the user can fix is `Usage` or `Environment` (`terminal.exits`), with one sentence that says what to do.
Any other exception is a bug and keeps its traceback.
"""
