"""What all tests share: one small Spark session for the whole run."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numba
import numpy as np
import pytest
from guarded_arrays import guard_all
from hypothesis import settings
from once import Once, filled_once
from pyspark.sql import SparkSession

from codec.compiler.kernel import LazyKernel
from pipeline.run import session as sessions
from pipeline.run.session import INTERPRETED, JOB_SETTINGS, session

if TYPE_CHECKING:
    from audited import Audited
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

# The same examples in every run, however busy the machine is, so that a red run means a change;
# HYPOTHESIS_PROFILE=default explores further.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# A decoder allocates megabytes of zeros and touches few of them. glibc raises the size from which it maps fresh pages
# to that of the largest array that was freed, and clears what it uses again: three times the time of a short capture.
M_MMAP_THRESHOLD = -3
with suppress(OSError, AttributeError):  # systems with another library
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 256 * 1024)

# Interpreted kernels may not count from the end of an array: with hostile bytes that is an index gone wrong.
if numba.config.DISABLE_JIT:
    guard_all()

# Files that take seven seconds or more, the longest first.
LONGEST = (
    "test_row_digests",
    "test_findings", "test_cli", "test_clocks", "test_invariance", "test_nightly", "test_lake", "test_lake_batches",
    "test_tables_batches", "test_tls_secrets", "test_local_processes", "test_carried_size", "test_lake_faults",
    "test_lake_commits", "test_tables_schemas", "test_functions_sql", "test_scratch", "test_fuzz", "test_benchmarks",
    "test_damaged_logins", "test_lake_object_store", "test_plots", "test_cut_redacted", "test_detection",
    "test_audit_job", "test_scenarios", "test_tables_of", "test_loss", "test_several_captures", "test_start",
    "test_source", "test_conversation", "test_report_page", "test_findings_own", "test_tls_handshakes", "test_cut_job",
    "test_connection_state", "test_order_far_apart", "test_variant", "test_lake_without_spark", "test_recipes",
    "test_object_store", "test_cut", "test_flows",
)  # fmt: skip

HAS_SESSION = sessions.has_session

TEST_SETTINGS = {
    **JOB_SETTINGS,
    # As jobs work on captures as small as these; compiled plans give the same tables in test_invariance.
    **INTERPRETED,
    # Two cores as on the smallest machine that runs the suite; more than one shows what depends on partitioning.
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    # As jobs do with so few rows (ONE_PARTITION): a sixth of the CPU time less. test_invariance has the defaults, too.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.ui.enabled": "false",
    # Tests make hundreds of small plans; none is looked at afterwards.
    "spark.sql.ui.retainedExecutions": "1",
    # What a laptop's session has as well (pipeline.run.session).
    "spark.driver.memory": "2g",
}


@pytest.fixture(scope="module")
def plain_kernels() -> Iterator[None]:
    """Kernels that tests call run as plain Python. For kernels that the product only calls inside of others: compiled,
    each costs up to half a minute, for these tests only. Compiled inside of the others, the tests of tables run them;
    `make slow-test` compiles them for these tests as well (COMPILE_ALL)."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
        if not os.environ.get("COMPILE_ALL"):
            patch.setattr(LazyKernel, "__call__", lambda kernel, *args: kernel._function(*args))
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that every Spark test uses, started by the first of them (about 5 s)."""
    spark = session("wirehare-tests", **TEST_SETTINGS)
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Makes a directory once for all processes of the run: `once(name, make)` gives the directory `name`, which `make`
    has filled."""
    own = tmp_path_factory.getbasetemp()
    return partial(filled_once, own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(scope="session")
def night(spark: SparkSession, once: Once) -> Path:
    """The folder in which `audited.audit` has decoded and audited everything."""
    from audited import audit

    return once("night", partial(audit, spark))


@pytest.fixture(scope="session")
def audited(spark: SparkSession, night: Path) -> Audited:
    """What it has found."""
    from audited import Audited

    return Audited(spark, night)


@pytest.fixture(scope="module", autouse=True)
def nothing_stays_cached() -> Iterator[None]:
    """Rows and plans that the tests of a module had Spark keep would fill its heap, and slow all later plans down."""
    yield
    spark = SparkSession.getActiveSession()
    if spark is not None:
        spark.catalog.clearCache()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Commands of a test without Spark find no session, as in a shell, whatever test came before in this process."""
    with_spark = "spark" in getattr(item, "fixturenames", ())
    sessions.has_session = HAS_SESSION if with_spark else lambda: False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For two processes: files with Spark tests from the front, the longest first, and the others from the back."""
    if hasattr(config, "workerinput"):  # of pytest-xdist
        with_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
        indices = {name: index for index, name in enumerate(LONGEST)}

        def order(item: pytest.Item) -> tuple[bool, int]:
            index = indices.get(item.path.stem, len(indices))
            return item.path not in with_spark, index if item.path in with_spark else -index

        items.sort(key=order)


def pytest_collection_finish() -> None:
    """The garbage collector need not visit all tests and modules again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """With `--dist loadfile`, one process takes files from the front, the other from the back. Until they meet, at
    short files, only one of them starts Spark and has its code compiled."""
    from xdist.scheduler import LoadFileScheduling

    class FromBothEnds(LoadFileScheduling):  # type: ignore[misc]
        def _assign_work_unit(self, node: WorkerController) -> None:
            if self.nodes.index(node) % 2:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    return FromBothEnds(config, log) if config.getoption("dist") == "loadfile" else None
