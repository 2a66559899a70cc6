"""Code blocks of the documentation, and the commands of docs/deployment.md with other names of hosts and stores.

`python tests/support/deployment.py FOLDER` packs the environment of executors as that page says, from a wheel, in
an empty folder; this takes minutes, most of them for compiling the kernels.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()
ARCHIVE = "environment.tar.gz"
# What a wheel is built from.
SOURCES = ("codec", "udfs", "pipeline", "jobs", "wirehare.py", "pyproject.toml", "README.md", "LICENSE")


def commands(heading: str) -> list[str]:
    """The shell blocks below a heading of the page, in order."""
    section = re.split(rf"^## {re.escape(heading)}$", PAGE, maxsplit=1, flags=re.MULTILINE)[1]
    return blocks(re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0], "sh")


def replaced(script: str, names: dict[str, str]) -> str:
    """The script with other names. Raises ValueError for one that it does not hold: then the page has changed."""
    for name, ours in names.items():
        if name not in script:
            raise ValueError(f"docs/deployment.md no longer names {name!r} there")
        script = script.replace(name, ours)
    return script


def environment(**more: str) -> dict[str, str]:
    """This process's, with the commands of its own environment first on the path, and no sources named to Python."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**inherited, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **more}


def shell(script: str) -> list[str]:
    """The command that runs a script and stops where a line of it fails."""
    return ["bash", "-euo", "pipefail", "-c", script]


def pack(folder: Path) -> None:
    """`environment` and its archive in `folder`, from a copy of the sources."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    subprocess.run(shell(commands("Pack the environment")[0]), cwd=folder, env=environment(), check=True)
    for name in SOURCES:  # must not be found by accident
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def answers(page: str) -> list[tuple[str, str]]:
    """(SQL, table in Markdown below it), in order; the table is '' if there is none."""
    return re.findall(r"^```sql\n(.*?)^```\n\n((?:\|[^\n]*\n)*)", page, re.MULTILINE | re.DOTALL)


def answer(rows: DataFrame) -> str:
    """The rows as a table in Markdown."""
    head = [" | ".join(rows.columns), "|".join(["---"] * len(rows.columns))]
    lines = [f"| {head[0]} |", f"|{head[1]}|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(cell, row))} |" for row in rows.collect())])


def cell(value: Any) -> str:
    """One value as a page shows it."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return str(value).replace("|", "\\|")


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
