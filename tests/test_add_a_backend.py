"""docs/add-a-backend.md, followed word by word in a copy of the checkout."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import tomllib

from tests import helpers

PAGE = (helpers.ROOT / "docs" / "add-a-backend.md").read_text(encoding="utf-8")
LEFT = shutil.ignore_patterns(".git", ".envs", ".venv", ".tox", "results", "__pycache__", "*.egg-info", ".*_cache")


def blocks(language: str) -> list[str]:
    texts = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert texts, f"the page has no {language} block"
    return texts


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with the page's files in it, and nothing else changed."""
    copy = tmp_path_factory.mktemp("copy") / "checkout"
    shutil.copytree(helpers.ROOT, copy, ignore=LEFT)
    names = re.findall(r"`((?:backends|tests)/\w*toy\.py)`:$", PAGE, re.MULTILINE)
    for name, source in zip(names, blocks("python"), strict=True):
        assert not (copy / name).exists()
        (copy / name).write_text(source, encoding="utf-8")
    project = copy / "pyproject.toml"
    head = "[project.optional-dependencies]\n"
    (extra,) = blocks("toml")
    assert f"under `{head.strip()}`" in PAGE
    project.write_text(project.read_text(encoding="utf-8").replace(head, head + extra), encoding="utf-8")
    return copy


def follow(command: str, checkout: Path, *more: str) -> str:
    """Output of one of the page's commands, which must succeed."""
    program, *arguments = shlex.split(command)
    assert program == "pytest"
    done = helpers.run(
        "pytest", *arguments, *more, "-p", "no:cacheprovider", cwd=checkout, timeout=900, PYTHONPATH=str(checkout)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_new_column_is_in_the_matrix(checkout: Path) -> None:
    column, _ = blocks("sh")
    output = follow(column, checkout, f"--results={checkout / 'results'}")
    assert re.search(r"^ +opset +toy@\d", output, re.MULTILINE), output
    assert re.search(r"^ +17 +✅", output, re.MULTILINE), output
    assert len(helpers.rows_in(checkout / "results")) == 10


def test_its_own_test_passes(checkout: Path) -> None:
    _, own = blocks("sh")
    assert "2 passed" in follow(own, checkout)


def test_the_files_pass_the_linter(checkout: Path) -> None:
    known = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    assert known["project"]["optional-dependencies"]["toy"]
    done = helpers.run("ruff", "check", "backends/toy.py", "tests/test_toy.py", cwd=checkout)
    assert done.returncode == 0, done.stdout
    done = helpers.run("ruff", "format", "--check", "backends/toy.py", "tests/test_toy.py", cwd=checkout)
    assert done.returncode == 0, done.stdout
