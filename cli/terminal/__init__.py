"""Input and output of the command: arguments, settings, exit codes, standard output, progress and display."""
