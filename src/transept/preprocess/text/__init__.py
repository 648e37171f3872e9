"""Text to ids and back. Importing anything here imports no torch, and numpy only where arrays are asked for."""
