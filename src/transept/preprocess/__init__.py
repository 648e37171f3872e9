"""From texts, images and sounds to a model's inputs. Importing anything here imports no torch."""
