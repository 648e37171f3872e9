"""A run on the disk: the files of its checkpoints, and going on from them."""
