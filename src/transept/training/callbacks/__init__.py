"""What a run tells: the base of callbacks, and those that show or keep its figures."""
