"""Airflow: decode the captures of a day on the cluster, then audit them. Each run is for its own day and repeatable.

Needs apache-airflow-providers-apache-spark, a connection `spark_default` to YARN, and the packed environment (see
docs/deployment.md). The code of the jobs is the same as on a laptop.
"""

from __future__ import annotations

import pendulum
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

STORE = "s3a://amqp"
DAY = "{{ ds }}"
TABLES = f"{STORE}/tables/date={DAY}"
REPORTS = f"{STORE}/reports"
SPARK = {
    "conn_id": "spark_default",
    "archives": "/opt/wirehare/environment.tar.gz#environment",
    "conf": {
        # The driver runs on the cluster, where the archive is unpacked for it as for executors.
        "spark.submit.deployMode": "cluster",
        "spark.pyspark.python": "./environment/bin/python",
    },
}

with DAG(
    "wirehare_audit",
    description="AMQP captures of a day: decode, audit, report",
    schedule="15 2 * * *",
    start_date=pendulum.datetime(2026, 11, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 1},
) as dag:
    decode = SparkSubmitOperator(
        task_id="decode",
        application="/opt/wirehare/jobs/decode.py",
        application_args=[f"{STORE}/captures/{DAY}", "--output", TABLES, "--overwrite"],
        **SPARK,
    )
    # spark-submit turns every exit code but 0 into a failed task: with --fail-on violation a bad night is a red one.
    audit = SparkSubmitOperator(
        task_id="audit",
        application="/opt/wirehare/jobs/audit.py",
        application_args=[
            TABLES,
            *("--report", f"{REPORTS}/{DAY}.html", "--json", f"{REPORTS}/{DAY}.json"),
            *("--fail-on", "violation", "--title", f"AMQP audit of {DAY}"),
        ],
        retries=0,
        **SPARK,
    )
    decode >> audit
