"""The settings of a run, and the ways in which people write them: Python, options of a command, and YAML."""
