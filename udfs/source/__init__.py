"""Captures as rows of packets or of runs of TCP segments.

options, paths        what is to be read: options of Spark as strings; files, directories, globs
capture_bytes         the bytes of a capture on any file system, decompressed
splits                parts of captures for tasks
sources, packets      the two data sources: runs, and packets; their rows are made by columns
rotation              captures whose clock steps back from one file to the next
connection_processes  programs at the ends of connections
captures              table captures
lake_states           states of open connections in a lake
"""
