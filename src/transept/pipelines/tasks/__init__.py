"""One file a task, named after it."""
