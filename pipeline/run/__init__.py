"""Where work runs: a Spark session, or processes of this machine.

`exchange` has pipelines that run on both; `session` starts Spark, each setting with its reason; `local_processes` are
those of this machine, whose program is `worker`; `scratch` are their private directories.
"""
