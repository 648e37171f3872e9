"""Kinds of models, by what they read: text, images, sound, and several at once."""
