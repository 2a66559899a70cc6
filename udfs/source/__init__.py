"""The data sources `pcap` and `tcp_runs`: paths, files, splits, columns."""
