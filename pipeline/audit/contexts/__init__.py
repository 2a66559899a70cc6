"""What detectors read: sets of rows, each computed once for all rules that ask for it."""
