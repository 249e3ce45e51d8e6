"""Rules of the source: which module may import which, and who may use private attributes."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dask_marsched"
FILES = sorted(PACKAGE.rglob("*.py"))

# A module imports from its own floor and those below. The first match counts.
FLOORS = (
    ("dask_marsched.core", 0),
    ("dask_marsched.policies", 1),
    ("dask_marsched.config", 2),
    ("dask_marsched.fallbacks", 2),
    ("dask_marsched.installation", 2),
    ("dask_marsched.journal", 2),
    ("dask_marsched.store", 2),
    ("dask_marsched.kernels", 2),
    ("dask_marsched.host", 3),
    ("dask_marsched.worker", 4),
    ("dask_marsched.monitoring", 5),
    ("dask_marsched.scheduling", 6),
    ("dask_marsched.api", 6),
    ("dask_marsched.dashboard", 6),
    ("dask_marsched.worker_plugin", 7),
    ("dask_marsched.scheduler_plugin", 7),
    ("dask_marsched.cancellation", 8),
    ("dask_marsched.client", 8),
    ("dask_marsched.preload", 8),
    ("dask_marsched.status", 8),
    ("dask_marsched.report", 9),
    ("dask_marsched.cli", 9),
    ("dask_marsched.demo", 9),
    ("dask_marsched.bench", 9),
    ("dask_marsched.simulation", 9),
    ("dask_marsched", 9),
)
PURE = (
    "dask_marsched.core",
    "dask_marsched.policies",
    "dask_marsched.kernels.expression",
    "dask_marsched.kernels.loops",
    "dask_marsched.kernels.numpy_backend",
    "dask_marsched.kernels.operations",
    "dask_marsched.kernels.bound_expression",
    "dask_marsched.kernels.tuner",
)
# No clock, no event loop, no threads, no files, no configuration, no dask, no chance.
PURE_MAY_IMPORT = {
    "__future__", "abc", "array", "bisect", "builtins", "collections", "dataclasses", "difflib",
    "enum", "functools", "graphlib", "hashlib", "heapq", "itertools", "math", "numbers", "operator",
    "types", "typing",
    "dask_marsched", "numpy", "sortedcontainers",
}  # fmt: skip

MOST_LINES = 450  # about 400 is the aim
MOST_LINES_OF_A_FUNCTION = 75  # about 60 is the aim
MOST_FILES, MOST_FILES_AT_THE_ROOT = 25, 12


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, imported module) of every import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = module.split(".")
                up = node.level - (1 if is_package else 0)
                parent = parent[: len(parent) - up] if up else parent
                base = ".".join([*parent, *filter(None, [node.module])])
            for alias in node.names:
                # the version is a constant that everybody may know
                if (base, alias.name) == ("dask_marsched", "__version__"):
                    continue
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in MODULES else base


def floor(module: str) -> int:
    for prefix, level in FLOORS:
        if module == prefix or module.startswith(prefix + "."):
            return level
    raise AssertionError(module)


def upward_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    return [
        f"{module}:{line} imports {target}"
        for line, target in imports(ast.parse(source), module, is_package)
        if target.split(".")[0] == "dask_marsched" and floor(target) > floor(module)
    ]


def impure_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    return [
        f"{module}:{line} imports {target}"
        for line, target in imports(ast.parse(source), module, is_package)
        if target.split(".")[0] not in PURE_MAY_IMPORT or target.startswith("numpy.random")
    ]


def chance(source: str, module: str) -> list[str]:
    """Return the uses of ``np.random``: pure code is given its randomness, if any."""
    return [
        f"{module}:{node.lineno} uses {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr == "random"
        and isinstance(node.value, ast.Name)
        and node.value.id in ("np", "numpy")
    ]


def is_private(name: object) -> bool:
    if not isinstance(name, str) or not name.startswith("_"):
        return False
    return not (name.startswith("__") and name.endswith("__")) and name != "_"


def private_touches(source: str, module: str) -> list[str]:
    """Return where private attributes of anything but self and cls are touched."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            of_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not of_own:
                found.append(f"{module}:{node.lineno} touches {ast.unparse(node)}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            by_name = node.func.id in ("getattr", "setattr", "hasattr", "delattr")
            names = [arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)]
            if by_name and any(map(is_private, names)):
                found.append(f"{module}:{node.lineno} touches {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            foreign = (node.module or "").split(".")[0] in ("dask", "distributed")
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            if foreign and any(map(is_private, parts)):
                found.append(f"{module}:{node.lineno} imports {ast.unparse(node)}")
    return found


def long_functions(source: str, module: str) -> list[str]:
    return [
        f"{module}.{node.name} has {length} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    ]


# --- the package --------------------------------------------------------------------------


def each_module() -> Iterator[tuple[str, str, bool]]:
    for module, path in MODULES.items():
        yield module, path.read_text(), path.name == "__init__.py"


def test_imports_run_downwards():
    found = [
        text
        for module, source, pkg in each_module()
        for text in upward_imports(source, module, pkg)
    ]
    assert found == []


def test_pure_modules_import_nothing_impure():
    found = [
        text
        for module, source, pkg in each_module()
        if module.startswith(PURE)
        for text in impure_imports(source, module, pkg) + chance(source, module)
    ]
    assert found == []


def test_private_attributes_are_touched_in_host_only():
    found = [
        text
        for module, source, _ in each_module()
        if not module.startswith("dask_marsched.host")
        for text in private_touches(source, module)
    ]
    assert found == []


def test_lengths():
    found = [
        f"{module} has {lines} lines"
        for module, source, _ in each_module()
        if (lines := len(source.splitlines())) > MOST_LINES
    ]
    found += [
        text for module, source, _ in each_module() for text in long_functions(source, module)
    ]
    assert found == []


def test_folders_are_small():
    files = Counter(path.parent for path in FILES)
    assert [str(folder) for folder, count in files.items() if count > MOST_FILES] == []
    assert files[PACKAGE] <= MOST_FILES_AT_THE_ROOT


def test_there_is_no_import_cycle():
    graph = {
        module: {target for _, target in imports(ast.parse(source), module, pkg)} & set(MODULES)
        for module, source, pkg in each_module()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_every_module_has_a_docstring():
    assert [m for m, source, _ in each_module() if not ast.get_docstring(ast.parse(source))] == []


def test_no_utils():
    assert [m for m in MODULES if m.rsplit(".")[-1] in ("utils", "util", "misc", "helpers")] == []


# --- the checks themselves ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from dask_marsched.policies import registry", "dask_marsched.core.graph"),
        ("import dask_marsched.host.scheduler.adapter", "dask_marsched.policies.registry"),
        (
            "def f():\n    from dask_marsched.scheduling import engine",
            "dask_marsched.host.graph.result_sizes",
        ),
        ("from ..host import scheduler", "dask_marsched.policies.registry"),
        ("from dask_marsched import Client", "dask_marsched.host.client"),
    ],
)
def test_upward_import_is_found(source, module):
    assert len(upward_imports(source, module)) == 1
    assert upward_imports("from dask_marsched import __version__", module) == []


def test_relative_imports_are_resolved():
    found = imports(ast.parse("from . import graph"), "dask_marsched.core", True)
    assert list(found) == [(1, "dask_marsched.core.graph")]
    found = imports(ast.parse("from .graph import depths"), "dask_marsched.core.roles", False)
    assert list(found) == [(1, "dask_marsched.core.graph")]


@pytest.mark.parametrize(
    "source", ["import time", "from dask import config", "import random", "import numpy.random"]
)
def test_impure_import_is_found(source):
    assert len(impure_imports(source, "dask_marsched.core.graph")) == 1


def test_chance_is_found():
    assert len(chance("import numpy as np\nnp.random.rand(3)", "m")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "scheduler._queue",
        "self.scheduler._queue = 1",
        "super()._start()",
        "getattr(scheduler, '_queue')",
        "from distributed.utils import _hidden",
        "from distributed._stories import story",
    ],
)
def test_private_touch_is_found(source):
    assert len(private_touches(source, "m")) == 1


@pytest.mark.parametrize("source", ["self._x", "cls._x", "x.__class__", "from m import _own", "_x"])
def test_own_private_names_are_fine(source):
    assert private_touches(source, "m") == []


def test_long_function_is_found():
    body = "    pass\n" * MOST_LINES_OF_A_FUNCTION
    assert len(long_functions("def f():\n" + body, "m")) == 1


def test_the_architecture_names_modules_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", text))
    assert len(named) > 40
    assert [
        path for path in sorted(named) if not any((d / path).exists() for d in (PACKAGE, ROOT))
    ] == []
