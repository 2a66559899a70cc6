"""Airflow: a batch of captures into the lake every ten minutes, and an audit of yesterday every night.

Needs apache-airflow-providers-apache-spark, a connection `spark_default`, and the packed environment with the extra
`lake` (see docs/deployment.md). `max_active_runs` keeps batches from overlapping.
"""

from __future__ import annotations

import pendulum
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

STORE = "s3a://amqp"
LAKE = f"{STORE}/lake"
SPARK = {
    "conn_id": "spark_default",
    "archives": "/opt/wirehare/environment.tar.gz#environment",
    "conf": {"spark.submit.deployMode": "cluster", "spark.pyspark.python": "./environment/bin/python"},
}
START = pendulum.datetime(2026, 11, 1, tz="UTC")

with DAG("wirehare_ingest", schedule="*/10 * * * *", start_date=START, catchup=False, max_active_runs=1) as ingest_dag:
    ingest = SparkSubmitOperator(
        task_id="ingest",
        application="/opt/wirehare/jobs/ingest.py",
        application_args=[f"{STORE}/captures", "--lake", LAKE, "--once"],
        **SPARK,
    )

with DAG("wirehare_lake_audit", schedule="15 2 * * *", start_date=START, catchup=False, max_active_runs=1) as audit_dag:
    audit = SparkSubmitOperator(
        task_id="audit",
        application="/opt/wirehare/jobs/audit.py",
        application_args=[
            *(LAKE, "--since", "{{ ds }}", "--until", "{{ macros.ds_add(ds, 1) }}"),
            *("--report", f"{STORE}/reports/{{{{ ds }}}}.html", "--json", f"{STORE}/reports/{{{{ ds }}}}.json"),
            *("--fail-on", "violation"),
        ],
        **SPARK,
    )
