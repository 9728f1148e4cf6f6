"""Imports go down only, and the bottom layer needs no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import zoedge

PACKAGE = Path(zoedge.__file__).parent

# From the top down; layers in one row do not know each other.
LAYERS = [
    {"cli"},
    {"report"},
    {"experiments"},
    {"monitor"},
    {"models", "tasks", "optim", "curvature"},
    {"theory"},
]
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}


def imported_layers(source: str, layer: str) -> set[str]:
    """Layers of the package that a module imports, other than its own."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where an import goes"
            names += [node.module or ""]
            if node.module == "zoedge":
                names += [f"zoedge.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "zoedge" and len(part) > 1} - {layer}


def violations(source: str, layer: str) -> set[str]:
    """Imports that do not go down; an unknown name cannot be below anything. Names of the package itself are fine."""
    others = imported_layers(source, layer) - {"__version__"}
    return {other for other in others if other not in LEVEL or LEVEL[other] <= LEVEL[layer]}


MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_go_down(module):
    layer = module.parts[0]
    assert layer in LEVEL, f"{layer} is not a layer of the design"
    upward = violations((PACKAGE / module).read_text(), layer)
    assert not upward, f"{module} imports from {upward}, which is not below {layer}"


def test_nothing_lives_outside_the_layers():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_an_upward_import_is_seen():
    assert violations("import zoedge.util", "theory") == {"util"}
    assert violations("from zoedge.cli import main", "theory") == {"cli"}
    assert violations("from zoedge import report", "theory") == {"report"}
    assert violations("import zoedge.optim.sgd", "curvature") == {"optim"}
    assert not violations("from zoedge.theory import band", "report")


def test_theory_loads_no_torch():
    code = "import sys, zoedge.theory; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_layers_that_need_torch_load_on_first_use():
    code = "import sys, zoedge; assert 'torch' not in sys.modules; zoedge.optim.ZOSGD; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'optimizers'"):
        _ = zoedge.optimizers  # pyright: ignore[reportAttributeAccessIssue]
