"""Kept observations: what `conform judge` makes of them without the runtime, and of files that somebody else wrote."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core import safetensors
from harness.core.bundle import Bundle
from harness.core.observation_files import Kept
from tests import helpers

GRAPH = ("--opset=17", "--layout=unified", "--exporter=torchscript")
OF_REPLAY = ("run", "time", "box", "command", "seconds", "series", "attempt")
"""Fields of a row that say which run it is of."""
OF_RUNTIME = ("seconds", "stages", "knobs", "evidence")
"""Parts of the detail that only a replay can know."""

# What docs/observations.md asks of a producer, by one that knows the bundle's files and nothing of the harness.
PRODUCER = """
import json, os, sys
import numpy as np, onnxruntime
from safetensors.numpy import save_file

bundle, out, wrong_from = sys.argv[1], sys.argv[2], int(sys.argv[3])
manifest = json.load(open(f"{bundle}/manifest.json"))
load = lambda name: np.load(f"{bundle}/{name}.npy")
source, starts = load("source_ids"), load("source_starts")
tokens, token_starts, top = load("tokens"), load("token_starts"), load("top_ids")
rules, dims = manifest["decode"], manifest["dims"]
wanted = {"exporter": "torchscript", "layout": "unified", "opset": 17}
graph = next(entry for entry in manifest["graphs"] if wanted.items() <= entry.items())
sessions, roles = {}, {}
for name, part in graph["parts"].items():
    sessions[name] = onnxruntime.InferenceSession(f"{bundle}/{part['file']}")
    roles[name] = {side: {port[3]: port[0] for port in part[side]} for side in ("inputs", "outputs")}

def run(part, feeds):
    names = roles[part]["outputs"]
    got = sessions[part].run(list(names.values()), {name: feeds[role] for role, name in roles[part]["inputs"].items()})
    return dict(zip(names, got))

def padded(ids, first, rows):
    cut = [ids[first[row] : first[row + 1]] for row in rows]
    array = np.full((len(rows), max(map(len, cut))), rules["pad"], np.int64)
    for index, row in enumerate(cut):
        array[index, : len(row)] = row
    return array, np.array([len(row) for row in cut])

def start(rows):
    ids, lengths = padded(source, starts, rows)
    mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
    held = run("encoder", {"source.ids": ids, "source.mask": mask})
    hidden = held.pop("encoder.hidden")
    for layer in range(dims["layers"]):
        for side in ("key", "value"):
            held[f"self.{layer}.{side}"] = np.zeros((len(rows), dims["heads"], 0, dims["head_dim"]), np.float32)
    return hidden, {**held, "source.mask": mask}

def step(held, fed):
    given = run("step", {**held, "tokens": fed[:, None]})
    held.update({role: array for role, array in given.items() if role != "logits"})
    return given

os.makedirs(out)
for number, rows in enumerate(manifest["batches"]["forced"]):
    golden, steps = padded(tokens, token_starts, rows)
    hidden, held = start(rows)
    tensors = {"encoder": hidden, **{role: array for role, array in held.items() if role.startswith("cross.")}}
    fed = np.full(len(rows), rules["start"], np.int64)
    for k in range(golden.shape[1]):
        given, active = step(held, fed), int((steps > k).sum())
        tensors[f"step.{k}.logits"] = given["logits"][:active, -1] + np.float32(k >= wrong_from)
        for role, array in given.items():
            if role.startswith("self."):
                tensors[f"step.{k}.{role}"] = np.ascontiguousarray(array[:active, :, k])
                tensors[f"step.{k}.{role}.shape"] = np.array(array.shape, np.int64)
                if k and k + 1 & k == 0:
                    tensors[f"step.{k}.{role}.whole"] = np.ascontiguousarray(array[:active])
        fed = golden[:, k].copy()
    save_file(tensors, f"{out}/forced-{number}.safetensors")
for number, rows in enumerate(manifest["batches"]["free"]):
    golden, steps = padded(tokens, token_starts, rows)
    hidden, held = start(rows)
    fed, going = np.full(len(rows), rules["start"], np.int64), np.ones(len(rows), bool)
    limit = min(rules["max_steps"], golden.shape[1] + 8)
    ids, largest, lengths = [], [], np.full(len(rows), limit)
    best = np.full((*golden.shape, top.shape[1]), np.nan)
    for k in range(limit):
        logits = step(held, fed)["logits"][:, -1]
        for index, row in enumerate(rows):
            if k < steps[index]:
                best[index, k] = logits[index, top[token_starts[row] + k]]
        largest.append(logits.argmax(1))
        logits[:, rules["suppress"]] = -np.inf
        fed = np.where(going, logits.argmax(1), rules["pad"])
        ids.append(fed)
        ended = going & (fed == rules["eos"])
        lengths[ended] = k + 1
        going &= ~ended
        if not going.any():
            break
    save_file({"ids": np.stack(ids, 1), "lengths": lengths, "largest": np.stack(largest, 1), "best": best},
              f"{out}/free-{number}.safetensors")
import hashlib
note = {
    "format": "seq2seq-conformance-observations", "schema": 1, "bundle_name": manifest["name"],
    "bundle": hashlib.sha256(open(f"{bundle}/manifest.json", "rb").read()).hexdigest(),
    "graph": "torchscript/unified/fp32/op17", "backend": "myboard", "version": "1.0", "device": "npu", "precision": "fp32",
    "execution": "device", "producer": "a test's own program",
    "checks": ["encoder", "logits", "kv_shape", "kv_values", "tokens", "placement"],
    "outputs": {}, "overwritten": [], "stopped": [], "ways": [], "cost": None, "answers": [],
    "placement": [{"part": part, "device": "npu", "precision": "fp32", "evidence": "its log"} for part in sessions],
    "files": {name: os.path.getsize(f"{out}/{name}") for name in os.listdir(out)},
}
json.dump(note, open(f"{out}/observations.json", "w"))
"""
SHIFTED = '''
"""ONNX Runtime whose logits of one token are off from step 5 on, and whose oldest cache entry changes at step 20."""

import numpy as np
from backends import ort


class Shifted(ort.Backend):
    def compile(self, part, options):
        program = super().compile(part, options)
        if part.name == "step":
            honest = program.run

            def run(feeds):
                outputs = honest(feeds)
                step = feeds["past_key_values.0.decoder.key"].shape[2]
                if step >= 5:
                    outputs["logits"][..., 3] += 1.0
                if step == 20:
                    outputs["present.1.decoder.value"] = outputs["present.1.decoder.value"].copy()
                    outputs["present.1.decoder.value"][:, :, 0] = 0
                return outputs

            program.run = run
        return program
'''


def newest(results: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["cell"], row["check"]): row for row in helpers.rows_in(results)}


def judge(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    return helpers.run("conform.cli", "judge", *map(str, arguments), **environment)


def without_runtime(folder: Path) -> dict[str, str]:
    """An environment in which importing a runtime ends the process."""
    folder.mkdir()
    for name in ("onnxruntime", "openvino", "torch"):
        (folder / f"{name}.py").write_text("import os\nos._exit(77)\n", encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def assert_same(kept: Path, judged: Path) -> None:
    replayed, again = newest(kept), newest(judged)
    assert set(replayed) == set(again)
    for key, row in replayed.items():
        for field, value in row.items():
            if field == "detail":
                value = {name: part for name, part in value.items() if name not in OF_RUNTIME}
                other = {name: part for name, part in again[key][field].items() if name not in OF_RUNTIME}
            else:
                other = again[key][field]
            assert field in OF_REPLAY or value == other, (key, field)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of ORT on one graph, its outputs kept."""
    results = tmp_path_factory.mktemp("kept") / "results"
    done = helpers.conformance(results, "--backend=ort", *GRAPH, "--keep-outputs")
    assert done.returncode == 0, done.stdout
    assert "MiB a cell" in done.stdout
    return results


def cell_folder(results: Path) -> Path:
    (note,) = results.rglob("observations.json")
    return note.parent


def test_judging_again_gives_the_rows_without_the_runtime(kept: Path, tmp_path: Path, valid: Any) -> None:
    done = judge(kept, "--results", tmp_path / "again", **without_runtime(tmp_path / "none"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MiB of observations" in done.stderr
    assert_same(kept, tmp_path / "again")
    assert len(newest(tmp_path / "again")) == 10
    valid(helpers.rows_in(tmp_path / "again"))


@pytest.mark.parametrize("layout", ["unified", "split", "static"])
def test_failures_are_judged_alike(layout: str, tmp_path: Path) -> None:
    """Step, value, bound, message, also of what a thorough second replay has found."""
    name = "past_key_values.0.decoder.key"
    adapter = (
        SHIFTED if layout != "static" else SHIFTED.replace(f'feeds["{name}"].shape[2]', 'int(feeds["position"][0])')
    )
    adapter = adapter.replace('part.name == "step"', 'part.name.startswith("step")')
    (tmp_path / "shifted_adapter.py").write_text(adapter, encoding="utf-8")
    asked = ("--backend=shifted_adapter:Shifted", "--opset=17", f"--layout={layout}", "--exporter=torchscript")
    done = helpers.conformance(tmp_path / "kept", *asked, "--keep-outputs", "-k", "not cost", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout
    again = judge(tmp_path / "kept", "--results", tmp_path / "again", **without_runtime(tmp_path / "none"))
    assert again.returncode == 1, again.stdout + again.stderr
    assert_same(tmp_path / "kept", tmp_path / "again")
    failed = {check: row["step"] for (_, check), row in newest(tmp_path / "again").items() if row["status"] == "FAIL"}
    assert failed["logits"] == 5
    assert failed["kv_values"] == 20


def test_another_program_writes_what_the_page_asks_for(tmp_path: Path, valid: Any) -> None:
    produce(tmp_path, "good", 999)
    done = judge(tmp_path / "good", "--results", tmp_path / "rows")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {check: row for (_, check), row in newest(tmp_path / "rows").items()}
    assert {check: row["status"] for check, row in rows.items()} == dict.fromkeys(
        ("artifact", "encoder", "logits", "kv_shape", "kv_values", "tokens", "text", "placement"), "PASS"
    )
    valid(rows.values())
    assert rows["logits"]["cell"] == "myboard@1.0/npu/torchscript/unified/fp32/op17"
    assert rows["logits"]["compared"] > 500_000


def test_another_program_that_is_wrong_is_caught(tmp_path: Path) -> None:
    produce(tmp_path, "bad", 3)
    done = judge(tmp_path / "bad", "--results", tmp_path / "rows")
    assert done.returncode == 1
    rows = {check: row for (_, check), row in newest(tmp_path / "rows").items()}
    assert (rows["logits"]["status"], rows["logits"]["step"], rows["logits"]["blame"]) == ("FAIL", 3, "runtime")
    assert rows["kv_values"]["status"] == "PASS"


def produce(folder: Path, name: str, wrong_from: int) -> None:
    (folder / "producer.py").write_text(PRODUCER, encoding="utf-8")
    command = [
        sys.executable,
        "-I",
        str(folder / "producer.py"),
        str(helpers.EMBEDDED),
        str(folder / name),
        str(wrong_from),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr


def _note(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        note = json.loads((folder / "observations.json").read_text(encoding="utf-8"))
        change(note)
        (folder / "observations.json").write_text(json.dumps(note), encoding="utf-8")

    return damage


def _cut(folder: Path) -> None:
    os.truncate(folder / "forced-0.safetensors", 1000)


def _header(folder: Path) -> None:
    path = folder / "forced-0.safetensors"
    content = path.read_bytes()
    path.write_bytes(b"\xff" * 8 + content[8:])


def _flat(folder: Path) -> None:
    """Rewrites one batch with its logits flat, as long as before, so that only its meaning is wrong."""
    path = folder / "forced-0.safetensors"
    tensors = safetensors.read(str(path))
    writer = safetensors.TensorWriter(str(path))
    for name, array in tensors.items():
        writer.add(name, array.reshape(-1) if name == "step.2.logits" else array)
    writer.close()
    _note(lambda note: note["files"].update({path.name: path.stat().st_size}))(folder)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no note": (lambda folder: (folder / "observations.json").unlink(), "was not finished"),
    "note is no JSON": (lambda folder: (folder / "observations.json").write_text("{"), "damaged"),
    "note of something else": (_note(lambda note: note.pop("format")), "not one of observations"),
    "newer schema": (_note(lambda note: note.update(schema=2)), "update the checkout"),
    "another bundle": (_note(lambda note: note.update(bundle="0" * 64)), "give it with --bundle"),
    "another graph": (_note(lambda note: note.update(graph="torchscript/unified/fp32/op8")), "has no graph"),
    "a field missing": (_note(lambda note: note.pop("checks")), "damaged"),
    "a file missing": (lambda folder: (folder / "forced-1.safetensors").unlink(), "partial: forced-1.safetensors"),
    "a file not listed": (_note(lambda note: note["files"].pop("forced-1.safetensors")), "forced-1.safetensors"),
    "a file cut": (_cut, "partial: forced-0.safetensors"),
    "a header cut": (_header, "damaged"),
    "a tensor of another rank": (_flat, "step.2.logits"),
    "a free batch missing": (_note(lambda note: note["files"].pop("free-3.safetensors")), "free-3.safetensors"),
    "a word with a slash": (_note(lambda note: note.update(device="a/b")), "device is 'a/b'"),
    "an unknown check": (_note(lambda note: note["checks"].append("all")), "are not some of"),
    "a part without placement": (_note(lambda note: note["placement"].pop()), "placement is not of the parts"),
    "a name that leaves": (_note(lambda note: note["files"].update({"../x.safetensors": 1})), "do not trust it"),
    "ways without steps": (
        _note(lambda note: note["ways"].append({"name": "x", "rows": [0], "steps": 2, "as_base": []})),
        "damaged",
    ),
}


@pytest.mark.parametrize("damage, words", DAMAGES.values(), ids=list(DAMAGES))
def test_what_cannot_be_used_is_one_line_and_exit_2(
    kept: Path, tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    copy = tmp_path / "cell"
    shutil.copytree(cell_folder(kept), copy)
    damage(copy)
    done = judge(copy, "--results", tmp_path / "rows")
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert words in lines[0]
    assert "Traceback" not in done.stderr


def test_a_way_that_ends_early_is_no_pass(kept: Path, tmp_path: Path) -> None:
    copy = tmp_path / "cell"
    shutil.copytree(cell_folder(kept), copy)
    _note(lambda note: note["ways"][1].update(steps=3))(copy)
    assert judge(copy, "--results", tmp_path / "rows").returncode == 1
    row = next(row for (_, check), row in newest(tmp_path / "rows").items() if check == "invariance")
    assert (row["status"], row["message"]) == ("ERROR", "twice: its last steps were not observed")


def test_a_folder_without_observations_is_refused(tmp_path: Path) -> None:
    done = judge(tmp_path)
    assert done.returncode == 2
    assert "no observations; run pytest --backend=NAME --keep-outputs first" in done.stderr


def test_files_are_those_of_the_safetensors_library(kept: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    folder = cell_folder(kept)
    for path in folder.glob("*.safetensors"):
        ours, theirs = safetensors.read(str(path)), library.load_file(path)
        assert set(ours) == set(theirs)
        for name, array in theirs.items():
            assert array.dtype == ours[name].dtype
            assert np.array_equal(array, ours[name], equal_nan=array.dtype.kind == "f")


def test_a_refusal_is_kept_as_it_is(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path / "kept", "--backend=tests.faults:Refuses", *GRAPH, "--keep-outputs")
    assert done.returncode == 1
    assert judge(tmp_path / "kept", "--results", tmp_path / "again").returncode == 1
    numeric = {check: row for (_, check), row in newest(tmp_path / "again").items() if check != "artifact"}
    assert {row["status"] for row in numeric.values()} == {"UNSUPPORTED"}


def test_only_one_step_of_one_batch_is_in_memory(kept: Path) -> None:
    """Tensors are views of the mapped files: reading copies nothing."""
    folder = Kept(str(cell_folder(kept)))
    bundle = Bundle(str(helpers.EMBEDDED), verify=False)
    graph = next(graph for graph in bundle.graphs if graph.id == folder.graph)
    for observation in folder.read(bundle, graph):
        for output in getattr(observation, "outputs", {}).values():
            assert output.value is None or not output.value.flags.owndata
