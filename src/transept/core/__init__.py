"""What every model is: how it is built, named, loaded, saved and called."""
