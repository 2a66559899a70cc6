"""Runs in, rows of frames, methods and connections out."""
