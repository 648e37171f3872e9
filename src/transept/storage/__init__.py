"""Files: where they come from, how they are read, replaced and published."""
