"""The page of the server, and the route that gives it out."""
