"""How kernels are compiled, linked and kept on disk, and the bounds that they work within."""
