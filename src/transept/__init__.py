"""transept."""
