"""The rules of the house: which floor may import which, what needs a reason or a word of documentation."""

from __future__ import annotations

import ast
import graphlib
import re
import sys
import tomllib
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from codec.tables import ALL_TABLES
from jobs.cli import command_line

ROOT = Path(__file__).parents[2]
FLOORS = ("codec", "udfs", "pipeline", "jobs")  # from the ground up
RUNTIME = {
    "pyspark",
    "pyarrow",
    "numpy",
    "numba",
    "llvmlite",
    "duckdb",
    "jinja2",
    "markupsafe",
    "altair",
    "vl_convert",
    "cryptography",
}
# Packages that are not named as what is imported from them.
DISTRIBUTIONS = {"vl_convert": "vl-convert-python"}
FRONT = ROOT / "wirehare.py"  # beside the floors: what notebooks import
TESTS = sorted(path for folder in ("tests", "benchmarks", "tools") for path in (ROOT / folder).rglob("*.py"))
SOURCES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@cache
def imports(path: Path) -> list[tuple[str, int]]:
    """(top-level package, line) of every import in a source file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name.split(".")[0], node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append(((node.module or "").split(".")[0], node.lineno))
    return found


def offenders(forbidden: dict[str, set[str]]) -> list[str]:
    """Where a floor imports a package that is forbidden to it."""
    return [
        f"{path.relative_to(ROOT)}:{line} imports {package}"
        for path in SOURCES
        for package, line in imports(path)
        if package in forbidden[path.relative_to(ROOT).parts[0]]
    ]


def test_no_layer_imports_one_above() -> None:
    assert offenders({floor: set(FLOORS[level + 1 :]) for level, floor in enumerate(FLOORS)}) == []


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def imported_modules(name: str) -> set[str]:
    """The modules of the product that a module imports, also inside of functions and for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                within if (within := f"{node.module}.{alias.name}") in MODULES else node.module for alias in node.names
            }
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & MODULES.keys()) - {name}


def test_a_file_name_in_a_traceback_names_the_module() -> None:
    """Two names are twice in codec: rows of frames and hashes of rows; connections with layers and without."""
    names = Counter(path.name for path in SOURCES if path.name != "__init__.py")
    assert {name for name, count in names.items() if count > 1} == {"connection.py", "rows.py"}


def is_named(module: str, page: str) -> bool:
    """Whether a page names a module: `tls_records`, or as one of `tls_*`."""
    return any(fnmatch(module, word) for word in re.findall(r"[\w*]*\w[\w*]*", page))


def test_the_docstring_of_a_folder_names_its_modules() -> None:
    """It says in which order to read them. Modules of commands have the names of these; codec lists the larger ones."""
    missing = [
        name
        for name, path in MODULES.items()
        if path.name != "__init__.py" and path.parent != ROOT / "jobs" and not name.startswith("codec.")
        if not is_named(path.stem, ast.get_docstring(ast.parse((path.parent / "__init__.py").read_text())) or "")
    ]
    assert missing == []


def folder(module: str) -> str:
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


def test_no_cycle_of_files_and_none_of_folders() -> None:
    """A folder and its child count as two. `prepare` raises CycleError with the cycle."""
    files = {name: imported_modules(name) for name in MODULES}
    graphlib.TopologicalSorter(files).prepare()
    folders: dict[str, set[str]] = {}
    for name, needs in files.items():
        folders.setdefault(folder(name), set()).update({folder(need) for need in needs} - {folder(name)})
    graphlib.TopologicalSorter(folders).prepare()


@cache
def words(heading: str) -> set[str]:
    """The first column of a table of section Words of CONTRIBUTING.md."""
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Words")[2].partition("\n## ")[0]
    rows = page.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return {word for row in re.findall(r"^\| (`.*?) \|", rows, re.M) for word in re.findall(r"`(\w+)`", row)}


@cache
def names_in(path: Path) -> list[tuple[str, int, bool]]:
    """(name, line, whether it is a function or a class) of what a source file names; tests have sentences as names."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append((node.name, node.lineno, True))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append((node.id, node.lineno, False))
        elif isinstance(node, ast.arg):
            found.append((node.arg, node.lineno, False))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.append((node.attr, node.lineno, False))
    return [each for each in found if not each[0].startswith("test_")]


def banned_names(path: Path) -> list[str]:
    """Where a file has a name that is banned for variables. What happens in place is no place."""
    return [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for name, line, _ in names_in(path)
        if name.lower().lstrip("_") in words("no variable")
        or {"place", "places"} & {*re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("in_place", "").split("_")}
    ]


def test_names_are_those_of_the_table_of_words() -> None:
    assert len(words("not")) >= 60
    assert len(words("no variable")) >= 10
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in [*SOURCES, *TESTS]
        for name, line, defined in names_in(path)
        if (defined and name in words("not")) or "octet" in name.lower()
    ]
    assert found == []


def test_no_variable_has_a_banned_name() -> None:
    assert [name for path in [*SOURCES, *TESTS] for name in banned_names(path)] == []


def test_the_module_of_notebooks_is_imported_by_nothing_and_imports_nothing_at_once() -> None:
    assert offenders({floor: {FRONT.stem} for floor in FLOORS}) == []
    allowed = set(sys.stdlib_module_names) | {"codec", "pipeline", "udfs"}  # these for the eyes of type checkers
    assert {package for package, _ in imports(FRONT)} <= allowed
    at_once = {
        alias.name.split(".")[0] if isinstance(statement, ast.Import) else (statement.module or "")
        for statement in ast.parse(FRONT.read_text()).body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for alias in statement.names
    }
    assert at_once <= set(sys.stdlib_module_names) | {"importlib.util"}


def test_all_our_errors_have_one_base_class() -> None:
    """Every exception class of the product is a WirehareError, but for the end by a signal, which nobody catches."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    raised = {
        name
        for name, of in bases.items()
        if name != "WirehareError" and any(base.endswith(("Error", "Exception")) for base in of)
    }
    ours = {"WirehareError"}
    while more := {name for name in raised - ours if bases[name] & ours}:
        ours |= more
    assert raised - ours == {"Stopped"}


def test_codec_knows_neither_spark_nor_arrow() -> None:
    forbidden: dict[str, set[str]] = {floor: set() for floor in FLOORS}
    assert offenders(forbidden | {"codec": {"pyspark", "pyarrow", "pandas"}}) == []


def test_the_product_imports_nothing_but_its_dependencies() -> None:
    """What a module needs at once must be installed with it; extras are imported where they are used."""
    known = RUNTIME | set(FLOORS) | set(sys.stdlib_module_names)
    found = {
        (str(path.relative_to(ROOT)), package)
        for path in SOURCES
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for package in (
            [alias.name.split(".")[0] for alias in statement.names]
            if isinstance(statement, ast.Import)
            else [(statement.module or "").split(".")[0]]
        )
        if package not in known
    }
    assert found == set()


def test_every_dependency_has_a_lower_and_an_upper_bound() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    unbounded = [need for group in groups for need in group if not re.search(r">=[\d.]+,<[\d.]+$", need)]
    assert unbounded == []
    needs = {re.split(r"[<>=]", need)[0] for need in PROJECT["dependencies"]}
    assert needs == {DISTRIBUTIONS.get(name, name) for name in RUNTIME} | {"pandas"}  # which only pyspark imports


def test_every_column_is_documented() -> None:
    bare = [f"{name}.{column.name}" for name, table in ALL_TABLES.items() for column in table if not column.doc]
    assert bare == []


def test_every_option_is_documented() -> None:
    actions = [(name, action) for name, parser in command_line().commands.items() for action in parser._actions]
    assert actions
    assert [(name, action.dest) for name, action in actions if not action.help] == []


def test_every_spark_setting_has_its_reason() -> None:
    """A setting follows its comment, or another setting that shares it."""
    lines = [line.strip() for line in (ROOT / "pipeline/run/session.py").read_text().splitlines()]
    is_setting = [re.match(r'(settings\[)?"spark\.[\w.]+"\]?( =|:)', line) is not None for line in lines]
    bare = [
        line
        for at, line in enumerate(lines)
        if is_setting[at] and not is_setting[at - 1] and not lines[at - 1].startswith("#")
    ]
    assert sum(is_setting) >= 10
    assert bare == []


def test_no_path_of_a_machine_is_in_the_tree() -> None:
    kinds = ("*.py", "*.md", "*.toml", "*.properties", "Makefile", "*.ipynb")
    homes = re.compile(r"(?<![\w.:/])/(work|root|home|Users|tmp)/\w")
    folders = (*FLOORS, "tests", "benchmarks", "notebooks", "samples")
    files = [path for folder in folders for kind in kinds for path in (ROOT / folder).rglob(kind)]
    files += [path for kind in kinds for path in ROOT.glob(kind)]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if homes.search(line)
    ]
    assert found == []


def test_ci_runs_make_test() -> None:
    steps = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert steps == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make test"]
