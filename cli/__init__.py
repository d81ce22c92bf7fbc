"""The command line: a composition root, and nothing that a library should hold.

`main` finds the command that the first argument names and imports that one alone; each command is a module with
`configure(parser)` and `run(arguments) -> int`. What a person can put right is raised as `Usage` or `Environment`
(`exits`) with one sentence that says what to do; anything else is our bug and keeps its traceback.
"""
