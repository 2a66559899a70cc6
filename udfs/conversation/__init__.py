"""Rows of frames in; channels, links, messages and what became of them, out."""
