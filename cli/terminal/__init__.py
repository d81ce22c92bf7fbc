"""Input and output of the commands: settings, YAML files, exit codes, standard output and progress."""
