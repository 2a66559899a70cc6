"""What a person has in a notebook: `import wirehare`, options that are checked, tables that show themselves.

Counts of the samples are Wireshark's (samples/README.md).
"""

from __future__ import annotations

import inspect
import pydoc
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import html5lib
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import codec.amqp
import pipeline
import wirehare
from codec.tables import ALL_TABLES, TABLES
from pipeline import Tables
from pipeline.run.local_processes import LocalProcesses
from udfs.source.options import OptionError, meant

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
HEAVY = ("pyspark", "numba", "pyarrow", "numpy", "altair", "pipeline")


def ran(program: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program in a Python of its own, whose current directory is `folder`."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# The module


def test_importing_loads_nothing_heavy(tmp_path: Path) -> None:
    done = ran(f"import sys, wirehare; print([name for name in {HEAVY} if name in sys.modules])", tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_package_exports_the_functions_of_pipeline() -> None:
    for name in pipeline.__all__:
        assert getattr(wirehare, name) is getattr(pipeline, name)
    assert wirehare.session.__module__ == "pipeline.run.session"
    assert wirehare.plots.__name__ == "pipeline.plots"
    assert wirehare.register.__module__ == "udfs"
    assert set(wirehare.__all__) <= set(dir(wirehare))
    with pytest.raises(AttributeError, match="has no attribute 'decod'"):
        wirehare.decod  # noqa: B018


def test_help_begins_with_the_calls() -> None:
    page = pydoc.plain(pydoc.render_doc(wirehare))
    assert [name for name in wirehare.__all__ if not re.search(rf"\b{name}\b", page.partition("FUNCTIONS")[0])] == []
    assert "CLASSES" not in page
    assert "FUNCTIONS\n    decode(data" in pydoc.plain(pydoc.render_doc(codec.amqp))


@pytest.mark.parametrize("name", ["pipeline.py", "udfs/__init__.py", "codec.py"])
def test_a_file_that_hides_one_of_our_packages_is_named(name: str, tmp_path: Path) -> None:
    hiding = tmp_path / name
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("print('mine')\n")
    done = ran("import wirehare", tmp_path)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {hiding} hides the package ")
    assert "rename it" in done.stderr
    assert done.stdout == ""


def test_a_file_that_hides_a_package_and_is_already_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("")
    done = ran("import pipeline; import wirehare", tmp_path)
    assert f"ImportError: {tmp_path / 'pipeline.py'} hides the package 'pipeline'" in done.stderr


# Options


def test_the_options_of_decode_are_in_its_signature_and_in_its_help() -> None:
    parameters = inspect.signature(wirehare.decode).parameters
    names = ("spark", "paths", "payload", "ports", "hosts", "since", "until", "split_bytes", "keylog")
    assert list(parameters) == [*names]
    text = inspect.getdoc(wirehare.decode) or ""
    for name in list(parameters)[1:]:
        assert re.search(rf"^(\w+, )?{name}(, \w+)?$", text, re.MULTILINE), name


def test_an_option_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'prots'; did you mean 'ports'\?"):
        pipeline.decode(None, "x.pcap", prots=[5672])  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'colour'$"):
        pipeline.decode(None, "x.pcap", colour="red")  # type: ignore[call-arg, arg-type]


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ({"since": "noon"}, "since: 'noon'"),
        ({"ports": "amqp"}, "ports: 'amqp'"),
        ({"hosts": ["broker"]}, "hosts: 'broker'"),
    ],
)
def test_a_value_that_means_nothing_is_an_error_at_once(option: dict[str, object], line: str) -> None:
    with pytest.raises(OptionError, match=line):
        pipeline.decode(None, "x.pcap", **option)  # type: ignore[arg-type]


def test_similar_names_are_suggested() -> None:
    assert meant("prots", ["ports", "hosts"]) == "; did you mean 'ports'?"
    assert meant("hs-8", ["HS-08", "CH-09"]) == "; did you mean 'HS-08'?"
    assert meant("colour", ["ports", "hosts"]) == ""


# Tables


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Iterator[Tables]:
    found = wirehare.decode(spark, str(SAMPLES / "091_channel_exceptions.pcap"), ports=44684)
    yield found
    found.release()


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("notebook") / "<b>out"
    capture = str(SAMPLES / "091_confirms_and_return.pcap")
    pipeline.write(LocalProcesses(1), capture, str(out), tables=["frames", "connections", "messages"])
    return out


def jobs_run(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def cells(page: str) -> list[list[str]]:
    """The text of the cells of an HTML table, as the standard reads it."""
    tree = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parseFragment(page)
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def test_tables_are_displayed_without_a_spark_job(spark: SparkSession, tables: Tables) -> None:
    before = jobs_run(spark)
    assert repr(tables) == f"Tables({', '.join(TABLES)})"
    head, *rows = cells(tables._repr_html_())
    assert [row[0] for row in rows] == list(TABLES)
    for name, (_, count, columns, _) in zip(TABLES, rows, strict=True):
        assert count == ""
        assert columns == f"{len(TABLES[name].names)} columns" + ", ".join(TABLES[name].names)
    assert head == ["table", "rows", "columns", "one row for each"]
    assert jobs_run(spark) == before


def test_tables_that_are_written_show_their_rows(spark: SparkSession, written: Path) -> None:
    loaded = wirehare.load(spark, str(written))
    before = jobs_run(spark)
    # 41 frames and a protocol header
    assert "frames: 42, " in repr(loaded)
    assert "connections: 1, " in repr(loaded)
    assert repr(loaded).count("\n") == 0
    assert len(repr(loaded)) < 200
    page = loaded._repr_html_()
    rows = {row[0]: row[1] for row in cells(page)[1:]}
    assert (rows["frames"], rows["connections"], rows["links"]) == ("42", "1", "")
    assert "<b>out" not in page
    assert "&lt;b&gt;out" in page
    assert jobs_run(spark) == before


def test_the_size_of_loaded_tables_is_that_of_their_folders_and_small_ones_have_one_partition(
    spark: SparkSession, written: Path, tmp_path: Path
) -> None:
    shutil.copytree(written, tmp_path / "tables")
    (tmp_path / "tables/other").mkdir()
    (tmp_path / "tables/other/file").write_bytes(bytes(3 << 20))
    parts = list((tmp_path / "tables/frames").glob("*.parquet"))
    shutil.copy(parts[0], tmp_path / "tables/frames/again.parquet")
    loaded = pipeline.load(spark, str(tmp_path / "tables"))
    files = [file for name in TABLES for file in (tmp_path / "tables" / name).rglob("*") if file.is_file()]
    assert loaded.byte_size == sum(file.stat().st_size for file in files)
    assert loaded.frames.select(F.spark_partition_id()).distinct().count() == 1


def test_tables_that_replaced_written_ones_do_not_show_the_old_rows(spark: SparkSession, written: Path) -> None:
    loaded = wirehare.load(spark, str(written))
    assert "42" not in repr(loaded.having(frames=loaded.frames.limit(1)))


def test_a_store_that_only_spark_reaches_is_no_error() -> None:
    found = Tables(**dict.fromkeys(TABLES), directory="nowhere://key:secret@store/out")  # type: ignore[arg-type]
    assert repr(found) == f"Tables({', '.join(TABLES)})"
    page = found._repr_html_()
    assert "nowhere://store/out" in page
    assert "secret" not in page


def test_every_table_has_a_description_of_its_rows() -> None:
    assert all(table.row for table in ALL_TABLES.values())


def test_asking_for_a_table_runs_no_job(spark: SparkSession) -> None:
    before = jobs_run(spark)
    found = wirehare.decode(spark, str(SAMPLES / "091_confirms_and_return.pcap"))
    assert found.messages.columns == TABLES["messages"].names
    assert found.channels.columns == TABLES["channels"].names
    assert jobs_run(spark) == before
    # publishes with confirms: packets 24 to 35; deliveries: none; one is returned
    assert found.messages.filter("operation = 'publish'").count() == 5
    assert found.channels.count() == 1
    found.release()


def test_a_small_capture_is_decoded_without_a_shuffle(spark: SparkSession) -> None:
    """Each shuffle is a job of several tasks, and those need further Python workers, which take seconds to load."""
    before = jobs_run(spark)
    found = wirehare.decode(spark, str(SAMPLES / "091_heartbeats.pcap"))
    assert found.messages.filter("operation = 'publish'").collect() == []
    status = spark.sparkContext.statusTracker()
    jobs = [status.getJobInfo(job) for job in sorted(status.getJobIdsForGroup(None))[before:]]
    stages = [status.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert [stage.numTasks for stage in stages if stage] == [1] * len(jobs)
    found.release()


def test_tables_with_variants_come_as_arrow(tables: Tables) -> None:
    """Rows without arguments among them: pyspark's own way fails on a VARIANT that is null."""
    for rows in (tables.frames, tables.connections):
        table = rows.toArrow()
        table.validate(full=True)
        assert table.column_names == rows.columns
        assert table.num_rows == rows.count() > 0
        assert table.cast(table.schema).equals(table)
    frames = tables.frames.select("frame_no", "arguments").orderBy("frame_no")
    expected = [(row.frame_no, row.arguments and row.arguments.toPython()) for row in frames.collect()]
    assert None in [arguments for _, arguments in expected]
    got = wirehare.to_arrow(frames).to_pylist()
    assert [(row["frame_no"], row["arguments"] is None) for row in got] == [
        (number, arguments is None) for number, arguments in expected
    ]
    from pyspark.sql.types import VariantVal

    read = [row["arguments"] and VariantVal(row["arguments"]["value"], row["arguments"]["metadata"]) for row in got]
    assert [value and value.toPython() for value in read] == [arguments for _, arguments in expected]


def test_a_mistyped_column_is_one_error(tables: Tables, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AnalysisException, match=r"frame_nr.*Did you mean"):
        tables.frames.select("frame_nr")
    with pytest.raises(AnalysisException, match=r"frame_nr.*Did you mean"):
        tables.frames.sparkSession.sql("select frame_nr from (select 1 frame_no)")
    assert capfd.readouterr() == ("", "")


def test_the_time_zone_of_a_session_changes_no_row(spark: SparkSession) -> None:
    """A session of others has one of its own; certificates of TLS have times, too."""
    capture = str(ROOT / "tests" / "captures" / "091_tls12_dsb.pcapng")

    def connections() -> list[dict[str, Any]]:
        tables = wirehare.decode(spark, capture)
        rows: list[dict[str, Any]] = wirehare.to_arrow(tables.connections).to_pylist()
        tables.release()
        return rows

    expected = connections()
    assert expected[0]["tls"]["server_certificate"]["not_after"] is not None
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert connections() == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
