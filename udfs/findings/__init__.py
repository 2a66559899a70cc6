"""Findings: the rows of tables that break rules, as DuckDB evaluates them in this process.

    found = evaluation.findings_of({"frames": ["tables/frames/part-0.parquet"], ...}, program)

Rules are data, and so is the program that checks them (`Program`): statements that derive relations from the tables,
contexts, each with the checks that its rows are put to, and queries from what breaks rules to findings. A program can
be pickled, so that other processes run the same one.

The rows may be in groups, each with all rows of some connections. A group answers questions (`answer`), and what it
answers is joined (`findings_across`):

    stage 0   each group: its findings, and its facts, a few rows for each connection (relations `fact_NAME`)
    stage 1   once: rules about several connections, on the facts of all groups
    stage 2   each group: more facts, about what stage 1 is looking for (keys of messages)
    stage 3   once: the other rules about several connections
    stage 4   each group: the packets of findings that stages 1 and 3 have made

A stage that nothing was found for is left out. Of one group all stages are evaluated at once.

Most time of a small audit goes into planning queries, so only checks that may match are run: a `Gate` is what the
tables must contain for a context, a guard is what a column must contain for a check.

A run reads the files of its tables and no others, and spills into its own scratch directory: DuckDB's access to files
is restricted to these, and the configuration is locked, before the first statement of the program is run.

Read `views` (Parquet files as tables of DuckDB), `program` (what is evaluated), `evaluation` (how, of one group and
across groups), `group_tasks` (groups in tasks of Spark).
"""
