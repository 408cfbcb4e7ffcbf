"""The recipes of docs/ci as they stand: two boxes, three nights, one of them broken, one box silent on the third.

Every command is that of the scripts, of the workflow or of the unit files; `pytest` really runs. What is made up is the
clock: rows of the nights before are moved back by whole days.
"""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

import onnxruntime
import pytest
import yaml

from conform import cli
from tests import helpers

CI = helpers.ROOT / "docs" / "ci"
CELL = f"ort@{onnxruntime.__version__}/cpu/torchscript/unified/fp32/op17"
POLICY = """
max_age_hours = 20
[[require]]
cells = ["ort@*/cpu/torchscript/unified/fp32/op17"]
boxes = ["alpha", "beta"]
compared = 1_000_000
"""


class Night(NamedTuple):
    """What came out of a morning: exit code of the script, its output, and the pages."""

    code: int
    said: str
    diff: dict
    page: str
    junit: str
    last_good: str


class Lab:
    """A checkout of its own, the store, and the made-up clock."""

    def __init__(self, root: Path) -> None:
        self.checkout, self.store, self.site = root / "checkout", root / "store", root / "site"
        for name in ("conform", "harness", "backends", "corpora", "reports", "tests", "docs"):
            shutil.copytree(
                helpers.ROOT / name, self.checkout / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True
            )
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(helpers.ROOT / name, self.checkout)
        programs = root / "bin"
        programs.mkdir()
        for name, module in (("pytest", "pytest"), ("conform", "conform.cli")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
            (programs / name).chmod(0o755)
        (root / "policy.toml").write_text(POLICY)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "PYTEST_"))},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.checkout),
            "OPSETS": "17",
            "STORE": str(self.store),
            "SITE": str(self.site),
            "POLICY": str(root / "policy.toml"),
            "PYTEST_ADDOPTS": "--layout=unified -p no:cacheprovider",
        }

    def bash(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=self.checkout,
            capture_output=True,
            text=True,
            timeout=600,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
        )

    def run(self, box: str, command: str, backend: str = "ort") -> None:
        """A box's night. A known-bad backend goes by the name of the honest one whose bad night it plays."""
        shutil.rmtree(self.checkout / "results", ignore_errors=True)
        done = self.bash(command, BACKENDS=backend, STORE="incoming")
        assert done.returncode == 0, done.stdout + done.stderr
        self.bring(self.checkout / "incoming", box, backend)

    def bring(self, folder: Path, box: str, backend: str = "ort") -> None:
        """The rows of a run on this machine as those of that box."""
        for path in folder.glob("*.jsonl"):
            text = path.read_text(encoding="utf-8").replace(backend, "ort")
            here = json.loads(text.splitlines()[0])["box"]
            text = text.replace(f'"box": "{here}"', f'"box": "{box}"').replace(path.stem, f"{box}-{path.stem}")
            (folder / f"{box}-{path.name}").write_text(text, encoding="utf-8")
            (folder / path.stem).rename(folder / f"{box}-{path.stem}")
            path.unlink()

    def a_day_passes(self) -> None:
        """Everything in the store happened a day earlier than it says."""
        for piece in self.store.glob("*.parquet"):
            piece.unlink()  # made of the rows that stay
        for path in self.store.glob("*.jsonl"):
            text = path.read_text(encoding="utf-8")
            path.write_text(re.sub(r'(?<="time": ")[\d-]+', lambda found: _before(found[0]), text), encoding="utf-8")
        for path in self.store.glob("last-good"):
            path.write_text(_before(path.read_text().strip()) + "\n")

    def morning(self, command: str) -> Night:
        shutil.rmtree(self.site, ignore_errors=True)
        done = self.bash(command)
        pages = {name: self.site / name for name in ("diff.json", "diff.md", "gate.xml")}
        read = {name: path.read_text(encoding="utf-8") if path.exists() else "" for name, path in pages.items()}
        good = self.store / "last-good"
        return Night(
            done.returncode,
            done.stdout + done.stderr,
            json.loads(read["diff.json"] or "{}"),
            read["diff.md"],
            read["gate.xml"],
            good.read_text().strip() if good.exists() else "",
        )


def _before(day: str) -> str:
    return (date.fromisoformat(day) - timedelta(days=1)).isoformat()


def today() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def workflow() -> dict[str, dict[str, str]]:
    """The commands of the workflow's jobs by step, but for what installs."""
    jobs = yaml.safe_load((CI / "github.yml").read_text(encoding="utf-8"))["jobs"]
    return {
        name: {step["name"]: step["run"] for step in job["steps"] if "run" in step and step["name"] != "install"}
        for name, job in jobs.items()
    }


def unit() -> list[str]:
    """The commands of the service, in this checkout."""
    lines = (CI / "conform-nightly.service").read_text(encoding="utf-8").splitlines()
    commands = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
    return [command.replace("/srv/conformance/checkout/", "") for command in commands]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Night]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    run, judge = unit()
    jobs = workflow()
    incoming = lab.checkout / "incoming"

    def copy(keep: bool = True) -> None:
        done = lab.bash(jobs["morning"]["copy"])
        assert done.returncode == 0, done.stderr
        if not keep:
            shutil.rmtree(incoming)

    # The first night, by the unit file: both boxes are good.
    lab.run("alpha", run)
    copy()
    (rows,) = incoming.glob("alpha-*.jsonl")
    good = rows.read_text(encoding="utf-8")
    lab.bring(incoming, "beta")
    copy(keep=False)
    nights = [lab.morning(judge)]

    # The second, by the workflow: beta's runtime is broken.
    lab.a_day_passes()
    lab.run("beta", jobs["night"]["run"], "tests.broken:Off")
    again = incoming / f"again-{rows.name}"
    again.write_text(good.replace(rows.stem, again.stem), encoding="utf-8")
    copy(keep=False)
    nights.append(lab.morning(jobs["morning"]["judge"]))

    # The third: alpha is good, beta is silent.
    lab.a_day_passes()
    incoming.mkdir()
    again = incoming / f"third-{rows.name}"
    again.write_text(good.replace(rows.stem, again.stem), encoding="utf-8")
    copy(keep=False)
    nights.append(lab.morning(judge))
    return nights


def test_a_good_night_passes_and_is_named(three: list[Night]) -> None:
    night = three[0]
    assert night.code == 0, night.said
    assert "PASS policy policy on" in night.said
    assert "2 required cells, 2 good" in night.said
    assert night.last_good == today()
    assert night.diff == {}, "nothing to compare the first good night with"
    assert 'tests="2" failures="0"' in night.junit


def test_a_broken_night_is_told_by_diff_and_gate(three: list[Night]) -> None:
    night = three[1]
    assert night.code == 1, night.said
    assert (night.diff["counts"]["failing"], night.diff["counts"]["stale"], night.diff["worse"]) == (1, 0, True)
    (change,) = night.diff["changes"]
    assert (change["cell"], change["box"], change["checks"]) == (CELL, "beta", ["logits"])
    assert change["said"] == "PASS → FAIL, first at step 5"
    assert change["since"] == today()
    assert f"`{CELL}` on beta logits: PASS → FAIL" in night.page
    assert re.search(
        rf"^FAIL {re.escape(CELL)} on beta: failed: logits FAIL, first at step 5: ", night.said, re.MULTILINE
    )
    assert "on alpha" not in night.said
    assert night.last_good == _before(today()), "the night before stays the last good one"
    assert 'failures="1"' in night.junit


def test_a_silent_box_is_told_by_diff_and_gate(three: list[Night]) -> None:
    night = three[2]
    assert night.code == 1, night.said
    (stale,) = [change for change in night.diff["changes"] if change["group"] == "stale"]
    assert (stale["box"], stale["said"]) == ("beta", f"silent since {_before(today())} (1 cells)")
    assert night.diff["counts"]["failing"] == night.diff["counts"]["missing"] == 0
    assert night.diff["old"].endswith(f"@{_before(_before(today()))}"), "against the last good night, two nights ago"
    assert "ort@*/cpu/torchscript/unified/fp32/op17 on beta: missing: no such cell on beta" in night.said
    assert night.last_good == _before(_before(today()))


def test_finished_nights_are_compacted_on_the_way(three: list[Night]) -> None:
    assert "->" not in three[0].said
    assert f"{_before(today())}: 20 rows of 2 runs -> " in three[1].said
    assert [line.partition(":")[0] for line in three[2].said.splitlines() if " -> " in line and "rows of" in line] == [
        _before(_before(today())),
        _before(today()),
    ]


def test_a_bad_store_stops_the_morning(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.store.mkdir()
    assert lab.bash("docs/ci/morning.sh").returncode == 2
    assert lab.bash("docs/ci/nightly.sh", STORE="").returncode == 1
    assert lab.bash("docs/ci/nightly.sh", BACKENDS="orrt").returncode == 4


def test_every_command_of_the_recipes_is_one_that_is_run_here() -> None:
    """What a recipe runs is one of its two scripts, or stands in a step that the nights above run."""
    assert unit() == ["docs/ci/nightly.sh", "docs/ci/morning.sh"]
    assert workflow() == {
        "night": {"run": "docs/ci/nightly.sh"},
        "morning": {
            "copy": 'mkdir -p "$STORE" && cp -ru incoming/. "$STORE/"',
            "judge": "docs/ci/morning.sh",
            "summary": 'cat "$SITE/diff.md" >> "$GITHUB_STEP_SUMMARY" || true',
        },
    }
    for script in ("nightly.sh", "morning.sh"):
        assert os.access(CI / script, os.X_OK)


def test_the_workflow_is_one_that_github_takes() -> None:
    """Actions are pinned to a version, each step does one thing, and a red night keeps its rows."""
    jobs = yaml.safe_load((CI / "github.yml").read_text(encoding="utf-8"))["jobs"]
    for job in jobs.values():
        assert job["runs-on"][0] == "self-hosted"
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert "run" in step or re.fullmatch(r"actions/[a-z-]+@v\d", step["uses"])
    (install,) = (step["run"] for step in jobs["morning"]["steps"] if step.get("name") == "install")
    assert '".[reports]"' in install, "what `conform report` draws with"
    kept = [step for job in jobs.values() for step in job["steps"] if "upload" in step.get("uses", "")]
    assert [step["if"] for step in kept] == ["always()", "always()"]
    assert jobs["morning"]["needs"] == "night"
    assert jobs["morning"]["if"] == "always()"


def test_units_are_of_the_form_systemd_reads() -> None:
    timer = configparser.ConfigParser()
    timer.read(CI / "conform-nightly.timer")
    assert timer["Timer"]["OnCalendar"] == "*-*-* 02:00:00 UTC"
    assert timer["Install"]["WantedBy"] == "timers.target"
    service = configparser.ConfigParser(strict=False)
    service.read(CI / "conform-nightly.service")
    assert service["Service"]["Type"] == "oneshot", "its lines run one after the other, and the first failure ends it"


def test_the_page_for_technicians_names_what_is_there() -> None:
    page = (helpers.ROOT / "docs" / "nightly.md").read_text(encoding="utf-8")
    for place in re.findall(r"\]\(([^)#]+)\)", page):
        assert (helpers.ROOT / "docs" / place).exists(), place
    commands = cli._parser()
    for line in re.findall(r"^    conform (.+)$", page, re.MULTILINE):
        commands.parse_args(line.partition("#")[0].split())
    for name in ("STORE", "BACKENDS", "OPSETS", "SITE", "POLICY"):
        assert f"`{name}`" in page
        assert name in (CI / "nightly.sh").read_text() + (CI / "morning.sh").read_text()
