"""Python workers: what they are told (`worker_config`), what they set up (`process_setup`; `daemon` is Spark's process
that forks them), and what a run reports of its progress (`progress`)."""
