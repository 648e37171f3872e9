"""Image processors: pictures in, ``pixel_values`` out."""
