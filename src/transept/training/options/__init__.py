"""Settings as people write them: options of a command, and YAML."""
