"""The class archive: used when it is there, harmless when it does not fit."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from pipeline.run import session
from pipeline.run.session import class_archive_options, local_jvm_settings


def test_without_an_archive_the_jvm_gets_no_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "CLASS_ARCHIVE", tmp_path / "none.jsa")
    assert "SharedArchiveFile" not in local_jvm_settings({}, remote=False)["spark.driver.extraJavaOptions"]


def test_an_archive_is_named_to_the_jvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tmp_path / "with space.jsa"
    archive.write_bytes(b"")
    monkeypatch.setattr(session, "CLASS_ARCHIVE", archive)
    options = shlex.split(local_jvm_settings({}, remote=False)["spark.driver.extraJavaOptions"])
    assert f"-XX:SharedArchiveFile={archive}" in options


def test_an_archive_that_does_not_fit_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tmp_path / "other.jsa"
    archive.write_bytes(b"not of this JVM" * 1000)
    monkeypatch.setattr(session, "CLASS_ARCHIVE", archive)
    ran = subprocess.run(
        ["java", *shlex.split(class_archive_options()), "-version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 3  # the version, and no warning
