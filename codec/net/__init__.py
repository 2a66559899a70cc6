"""From packets to the segments of TCP connections.

Read `headers` (link layers, tunnels and IP, a step for each), `layers` (packets to segments), `runs` (segments of one
flow), `fragments` (IP), `identity` (names of flows and connections; address spaces).
"""
