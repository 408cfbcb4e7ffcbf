"""The section "Add a check" of docs/architecture.md, followed word by word in a copy of the checkout."""

import json
import re
import shlex
import shutil
from pathlib import Path

import jsonschema
import pytest

from tests import helpers
from tests.test_add_a_backend import LEFT

PAGE = (helpers.ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## Add a check")[1]
FILES = ("harness/core/verdict.py", "harness/judge/checks.py", "harness/judge/checks.py", "harness/core/details.py")
"""What each diff of the page changes, in its order."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with the page's check and its known-bad backend in it."""

    copy = tmp_path_factory.mktemp("copy") / "checkout"
    shutil.copytree(helpers.ROOT, copy, ignore=LEFT)
    check, bad = blocks("python")
    (copy / "harness" / "judge" / "repeats.py").write_text(check, encoding="utf-8")
    (copy / "stutter.py").write_text(bad, encoding="utf-8")
    for name, diff in zip(FILES, blocks("diff"), strict=True):
        lines = diff.splitlines()
        old = "\n".join(line[1:] for line in lines if line.startswith("-"))
        new = "\n".join(line[1:] for line in lines if line.startswith("+"))
        text = (copy / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name} has not just one {old!r}"
        (copy / name).write_text(text.replace(old, new), encoding="utf-8")
    done = helpers.run("reports.schema", cwd=copy, PYTHONPATH=str(copy))
    assert done.returncode == 0, done.stderr
    return copy


def test_the_new_check_passes_the_honest_and_fails_the_other(checkout: Path) -> None:
    (command,) = blocks("sh")
    program, *arguments = shlex.split(command)
    results = checkout / "results"
    done = helpers.run(
        program, *arguments, f"--results={results}", "-p", "no:cacheprovider", cwd=checkout, PYTHONPATH=str(checkout)
    )
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {row["backend"]: row for row in helpers.rows_in(results)}
    assert (rows["ort"]["check"], rows["ort"]["status"]) == ("repeats", "PASS")
    assert rows["ort"]["compared"] > 1000
    wrong = rows["stutter:Backend"]
    assert (wrong["status"], wrong["blame"]) == ("FAIL", "runtime")
    assert wrong["value"] > wrong["bound"]
    assert wrong["sentence"]
    schema = json.loads((checkout / "reports" / "row.schema.json").read_text(encoding="utf-8"))
    for row in rows.values():
        jsonschema.validate(row, schema)
    assert "beyond" in json.dumps(schema)


def test_the_files_pass_the_linter(checkout: Path) -> None:
    for command in (("check",), ("format", "--check")):
        done = helpers.run("ruff", *command, "harness/judge/repeats.py", "harness/judge/checks.py", cwd=checkout)
        assert done.returncode == 0, done.stdout
