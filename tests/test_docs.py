"""What README, docs and docstrings show is run as it stands."""

import doctest
import importlib
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

import zoedge

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(match.group(1), id=f"{page.name}:{page.read_text()[: match.start()].count(chr(10)) + 1}")
    for page in PAGES
    for match in re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
]
MODULES = [info.name for info in pkgutil.walk_packages(zoedge.__path__, "zoedge.")]


@pytest.mark.parametrize("code", BLOCKS)
def test_code_block_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<docs>", "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_page_of_the_figures_is_that_of_their_verdicts():
    """It is made by a script, so that it cannot drift from what was found."""
    script = runpy.run_path(str(ROOT / "docs" / "reproduction.py"))
    assert script["page"]() == (ROOT / "docs" / "reproduction.md").read_text()
