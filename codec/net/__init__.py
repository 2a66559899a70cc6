"""From packets to the ordered bytes of TCP connections: layers, runs, reassembly."""
