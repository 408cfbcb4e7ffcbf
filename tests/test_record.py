"""Recording a tiny Marian with random weights: the bundle repeats, tells nothing of this box, and replays."""

import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from conform import cli
from harness.core.bundle import Bundle
from harness.golden import record as recorder
from tests import helpers

OPSETS = (12, 18)
GRAPHS = [("torchscript", 12), ("torchscript", 18), ("dynamo", 18)]
CELLS = [(*graph, layout) for graph in GRAPHS for layout in ("split", "unified")]
CELLS[2:2] = [("torchscript", 12, "static")]
CELLS[5:5] = [("torchscript", 18, "static"), ("torchscript", 18, "static-scatter")]
STEPS = 12
HEADER = "id\tdomain\tlicence\tsource\treference"


def make_model(folder: Path) -> None:
    """A MarianMT directory as Optimum users have it: d 32, one layer a side, a vocabulary of its own."""
    lines = helpers.CORPUS.read_text(encoding="utf-8").splitlines()[1:200]
    text = [line.split("\t")[column] for line in lines for column in (3, 4)]
    folder.mkdir()
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=stream, vocab_size=400, hard_vocab_limit=False, minloglevel=2,
        bos_id=-1, eos_id=0, unk_id=1, character_coverage=1.0, num_threads=1,
    )  # fmt: skip
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(stream.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=stream.getvalue())
    vocabulary = {pieces.id_to_piece(index): index for index in range(pieces.get_piece_size())}
    vocabulary["<pad>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    pad, size = vocabulary["<pad>"], len(vocabulary)
    config = MarianConfig(
        vocab_size=size, decoder_vocab_size=size, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=48,
        decoder_ffn_dim=48, encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=256,
        pad_token_id=pad, eos_token_id=0, bos_token_id=0, forced_eos_token_id=0, decoder_start_token_id=pad,
        scale_embedding=True, static_position_embeddings=True, activation_function="swish", max_length=256,
        bad_words_ids=[[pad]], num_beams=1, share_encoder_decoder_embeddings=True, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(5)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
        model.final_logits_bias.normal_(0, 1.0)
        model.final_logits_bias[0, 0] = 3.0
    model.generation_config.update(
        bad_words_ids=[[pad]], num_beams=1, max_length=256, pad_token_id=pad, eos_token_id=0,
        decoder_start_token_id=pad, forced_eos_token_id=0,
    )  # fmt: skip
    model.save_pretrained(folder)
    MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        str(folder / "vocab.json"),
        source_lang="en",
        target_lang="zh",
    ).save_pretrained(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "toy-en-zh"
    make_model(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = helpers.CORPUS.read_text(encoding="utf-8").splitlines()
    rows = [lines[1], lines[30], lines[60], lines[100], lines[150]]
    place = tmp_path_factory.mktemp("corpora") / "five.tsv"
    place.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return place


def record(model: Path, corpus: Path, out: Path, **options: Any) -> str:
    asked = {
        "opsets": OPSETS,
        "max_steps": STEPS,
        "traced_steps": 40,
        "free_batch": 2,
        "forced_batch": 2,
        "progress": False,
    }
    return recorder.record(model, corpus, out, **{**asked, **options})


@pytest.fixture(scope="module")
def recorded(model: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("recorded") / "toy.bundle"
    return out, record(model, corpus, out)


def conform(*arguments: object) -> tuple[int, str, str]:
    """``conform`` in this process, which has torch already: exit code, output, errors."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = cli.main(list(map(str, arguments)))
    return code, out.getvalue(), errors.getvalue()


def onnx_files(bundle: Path) -> Iterator[tuple[Path, Any]]:
    for place in sorted(bundle.glob("*.onnx")):
        yield place, onnx.load(str(place), load_external_data=False)


def test_recording_repeats(recorded: tuple[Path, str], model: Path, corpus: Path, tmp_path: Path) -> None:
    """In this process again, and by ``conform record`` in another one, from copies elsewhere."""
    out, digest = recorded
    assert record(model, corpus, tmp_path / "again.bundle") == digest
    assert Bundle(str(tmp_path / "again.bundle")).hash == digest == Bundle(str(out)).hash


def test_recording_repeats_in_another_process_and_place(model: Path, corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "far" / model.name
    shutil.copytree(model, copy)
    ours = record(model, corpus, tmp_path / "ours.bundle", opsets=[18], free_batch=24, forced_batch=6)
    done = helpers.run(
        "conform.cli", "record", str(copy), "--corpus", str(corpus), "--out", "theirs.bundle", "--opset", "18",
        "--max-steps", str(STEPS), "--traced-steps", "40", cwd=tmp_path, PYTHONHASHSEED="123", PYTHONPATH=str(helpers.ROOT),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Bundle(str(tmp_path / "theirs.bundle")).hash == ours
    assert ours[:12] in done.stdout
    assert "pytest --backend=ort --bundle=theirs.bundle" in done.stdout


def test_graphs_are_of_the_opset_and_ir_they_claim(recorded: tuple[Path, str]) -> None:
    bundle = Bundle(str(recorded[0]))
    assert [(graph.exporter, graph.opset, graph.layout) for graph in bundle.graphs] == CELLS
    for graph in bundle.graphs:
        for part in graph.parts:
            found = onnx.load(part.path, load_external_data=False)
            assert [(entry.domain, entry.version) for entry in found.opset_import] == [("", graph.opset)]
            assert found.ir_version == graph.ir
            assert not found.functions
            onnx.checker.check_model(part.path)
    assert {graph.opset: graph.ir for graph in bundle.graphs} == {12: 7, 18: 8}, "the lowest IR of each opset"


def test_nothing_tells_of_this_box_or_time(recorded: tuple[Path, str], model: Path, corpus: Path) -> None:
    out, _ = recorded
    texts = {"manifest.json": (out / "manifest.json").read_bytes()}
    texts.update({place.name: place.read_bytes() for place in out.glob("*.onnx")})
    private = [
        str(helpers.ROOT),
        str(Path.home()),
        str(model.parent),
        str(corpus.parent),
        str(out.parent),
        "site-packages",
    ]
    for name, content in texts.items():
        for word in private:
            assert word.encode() not in content, (name, word)
        assert not re.search(rb"20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d", content), name
    for place, found in onnx_files(out):
        assert not found.doc_string, place
        assert not found.graph.value_info, place
        graph = found.graph
        for item in (found, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
            assert not item.metadata_props, (place, item.name)
        assert not any(node.doc_string for node in graph.node), place
    json.loads(texts["manifest.json"])
    assert not re.search(rb'"/', texts["manifest.json"]), "an absolute path"


def test_golden_is_what_generate_gives(recorded: tuple[Path, str], model: Path) -> None:
    bundle = Bundle(str(recorded[0]))
    theirs = MarianMTModel.from_pretrained(model, dtype=torch.float64).eval()
    tokenizer = MarianTokenizer.from_pretrained(model)
    lengths = set()
    for index, row in enumerate(bundle.rows):
        ids = tokenizer(row.source, return_tensors="pt")
        assert bundle.source(index).tolist() == ids["input_ids"][0].tolist()
        found = theirs.generate(
            **ids, num_beams=1, do_sample=False, max_new_tokens=STEPS, max_length=None, forced_eos_token_id=None
        )
        assert bundle.tokens(index).tolist() == found[0, 1:].tolist()
        lengths.add(len(bundle.tokens(index)))
    assert bundle.pieces == sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    assert max(lengths) == STEPS, "the limit was reached"


def test_floors_are_small_and_not_nothing(recorded: tuple[Path, str]) -> None:
    bundle = Bundle(str(recorded[0]))
    for output in ("logits", "self", "encoder", "cross"):
        golden, floor = bundle.array(f"trace_{output}"), bundle.floor("fp32", output)
        assert golden.dtype == floor.dtype == np.float64
        assert 0 < floor.max() < 1e-4 * np.abs(golden).max()


def test_recorded_bundle_replays_green(recorded: tuple[Path, str], tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, f"--bundle={recorded[0]}", "--backend=ort")
    assert done.returncode == 0, done.stdout
    rows = helpers.rows_in(tmp_path)
    assert {(row["exporter"], row["opset"], row["layout"]) for row in rows} == set(CELLS)
    assert {row["status"] for row in rows} == {"PASS"}
    assert all(row["compared"] > 0 for row in rows)


def test_dynamo_graphs_replay_on_openvino(recorded: tuple[Path, str], tmp_path: Path) -> None:
    """Not ``unified``: its expected failure needs more steps than this bundle has on some CPUs."""
    done = helpers.conformance(
        tmp_path, f"--bundle={recorded[0]}", "--backend=openvino", "--exporter=dynamo", "--layout=split"
    )
    assert done.returncode == 0, done.stdout
    rows = helpers.rows_in(tmp_path)
    assert {(row["exporter"], row["status"]) for row in rows} == {("dynamo", "PASS")}
    assert all("--exporter=dynamo --opset=18 --layout=split" in row["command"] for row in rows)


def test_both_exporters_share_their_weights(recorded: tuple[Path, str]) -> None:
    entries = Bundle(str(recorded[0])).manifest["graphs"]
    graphs = {(entry["exporter"], entry["opset"]): entry for entry in entries if entry["layout"] == "unified"}
    theirs, ours = ({file for part in graphs[key]["parts"].values() for file in part["weights"]} for key in GRAPHS[1:])
    assert ours <= theirs


def test_against_itself_nothing_changed(recorded: tuple[Path, str]) -> None:
    assert recorder.against(Bundle(str(recorded[0])), Bundle(str(recorded[0]))) == []


def perturbed(model: Path, place: Path) -> Path:
    """The same checkpoint with other positions: what a changed default in a library would do."""
    shutil.copytree(model, place)
    weights = load_file(place / "model.safetensors")
    theirs = MarianMTModel.from_pretrained(model)
    for name, tensor in theirs.state_dict().items():
        if "embed_positions" in name:
            weights[name] = tensor.clone() * 1.01
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    return place


def test_against_names_a_change_of_the_golden(
    recorded: tuple[Path, str], model: Path, corpus: Path, tmp_path: Path
) -> None:
    other = perturbed(model, tmp_path / model.name)
    code, out, errors = conform(
        "record", other, "--corpus", corpus, "--out", tmp_path / "new.bundle", "--opset", "17", "--layout", "unified",
        "--max-steps", STEPS, "--traced-steps", 40, "--against", recorded[0],
    )  # fmt: skip
    assert code == 1, errors
    assert re.search(r"^model file model\.safetensors: [0-9a-f]{12} -> [0-9a-f]{12}$", out, re.MULTILINE)
    gap = r"^encoder: largest change [\d.e+-]+ \([\d.e+-]+ times the old fp32 floor\), at source position \d+ of"
    assert re.search(gap, out, re.MULTILINE)
    assert "graph removed: torchscript/split/fp32/op12" in out


def break_json(name: str, **values: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps({**content, **values}), encoding="utf-8")

    return spoil


def drop_tensor(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        del weights[name]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return spoil


def other_vocabulary(folder: Path) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    changed = {
        piece if piece in ("</s>", "<unk>", "<pad>") else f"other{index}": index for piece, index in vocabulary.items()
    }
    (folder / "vocab.json").write_text(json.dumps(changed), encoding="utf-8")


def smaller_vocabulary(folder: Path) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    (folder / "vocab.json").write_text(json.dumps(dict(list(vocabulary.items())[:-1])), encoding="utf-8")


def not_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["final_logits_bias"][0, 3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def scrap(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(b"\x00scrap")


class BadModel(NamedTuple):
    spoil: Callable[[Path], object]
    says: str


MODELS = {
    "no bias": BadModel(drop_tensor("final_logits_bias"), "has no final_logits_bias"),
    "no layer": BadModel(drop_tensor("model.encoder.layers.0.fc1.weight"), "lacks 1 tensors, model.encoder.layers.0"),
    "not finite": BadModel(not_finite, "final_logits_bias is not finite"),
    "other tokenizer": BadModel(other_vocabulary, "pieces of source.spm are not in the vocabulary"),
    "vocabulary of another size": BadModel(smaller_vocabulary, "vocab.json has"),
    "no config": BadModel(gone("config.json"), "config.json is missing"),
    "no weights": BadModel(gone("model.safetensors"), "no weights"),
    "no source.spm": BadModel(gone("source.spm"), "source.spm is missing"),
    "no target.spm": BadModel(gone("target.spm"), "target.spm is missing"),
    "no vocabulary": BadModel(gone("vocab.json"), "vocab.json is missing"),
    "damaged config": BadModel(scrap("config.json"), "config.json cannot be read"),
    "damaged weights": BadModel(scrap("model.safetensors"), "model.safetensors cannot be read"),
    "damaged source.spm": BadModel(scrap("source.spm"), "source.spm is no SentencePiece model"),
    "other architecture": BadModel(break_json("config.json", model_type="t5"), "model_type 't5', not 'marian'"),
    "start token outside": BadModel(break_json("config.json", decoder_start_token_id=99999), "decoder_start_token_id 99999"),
}  # fmt: skip


def line_of(code: int, out: str, errors: str) -> str:
    """The one line of a refusal. A progress bar may stand before it."""
    assert code == 2, errors
    assert "Traceback" not in errors
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, errors
    assert errors.splitlines()[-1] == lines[0]
    assert "; " in lines[0] or "choose of" in lines[0], "it says what to do"
    return lines[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_bad_model_is_refused(name: str, model: Path, corpus: Path, tmp_path: Path) -> None:
    place = tmp_path / model.name
    shutil.copytree(model, place)
    MODELS[name].spoil(place)
    said = line_of(*conform("record", place, "--corpus", corpus, "--out", tmp_path / "out.bundle", "--opset", "17"))
    assert MODELS[name].says in said
    assert str(place) in said
    assert sorted(path.name for path in tmp_path.iterdir()) == [model.name], "nothing is left behind"


ROW = "a\td\tl\tValve.\t阀门。"
CORPORA = {
    "missing": (None, "cannot be read"),
    "empty": (b"", "line 1: the header is ''"),
    "header only": (HEADER.encode() + b"\n", "no rows"),
    "other header": (b"id\tsource\ttarget\n" + ROW.encode(), "line 1: the header is"),
    "too few fields": (f"{HEADER}\n{ROW}\nb\td\tl\tx\n".encode(), "line 3: 4 fields, not 5"),
    "too many fields": (f"{HEADER}\n{ROW}\textra\n".encode(), "line 2: 6 fields, not 5"),
    "same id twice": (f"{HEADER}\n{ROW}\n{ROW}\n".encode(), "line 3: the id 'a' stands on an earlier line too"),
    "no id": (f"{HEADER}\n{ROW[1:]}\n".encode(), "line 2: the id is empty"),
    "not UTF-8": (f"{HEADER}\n{ROW}\n".encode() + b"b\td\tl\t\xff\xfe\tx\n", "line 3: not UTF-8"),
    "too long": (f"{HEADER}\na\td\tl\t{'valve ' * 300}\tx\n".encode(), "row a:"),
}


@pytest.mark.parametrize("name", CORPORA)
def test_a_bad_corpus_is_refused(name: str, model: Path, tmp_path: Path) -> None:
    content, words = CORPORA[name]
    place = tmp_path / "bad.tsv"
    if content is not None:
        place.write_bytes(content)
    said = line_of(*conform("record", model, "--corpus", place, "--out", tmp_path / "out.bundle", "--opset", "17"))
    assert words in said
    assert not (tmp_path / "out.bundle").exists()
    assert len(list(tmp_path.iterdir())) == (content is not None)


def test_what_is_there_is_not_replaced(recorded: tuple[Path, str], model: Path, corpus: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.bundle"
    shutil.copytree(recorded[0], kept)
    asked = ["--opset", "17", "--layout", "unified", "--max-steps", STEPS, "--traced-steps", 30]
    assert "is there already" in line_of(*conform("record", model, "--corpus", corpus, "--out", kept, *asked))
    assert Bundle(str(kept)).hash == recorded[1]
    code, _, errors = conform("record", model, "--corpus", corpus, "--out", kept, "--overwrite", *asked)
    assert code == 0, errors
    assert [graph.id for graph in Bundle(str(kept)).graphs] == ["torchscript/unified/fp32/op17"]


def test_what_is_no_bundle_is_never_replaced(model: Path, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work", encoding="utf-8")
    said = line_of(*conform("record", model, "--corpus", corpus, "--out", tmp_path / "home", "--overwrite"))
    assert "is no bundle, so it is left alone" in said
    assert (tmp_path / "home" / "thesis.txt").read_text(encoding="utf-8") == "years of work"


@pytest.mark.parametrize(
    "options, words",
    [
        (["--out", "no/such/folder/x.bundle"], "no such directory"),
        (["--out", "x.bundle", "--opset", "8"], "opset 8: choose of"),
        (["--out", "x.bundle", "--opset", "28-29"], "opset 29: choose of"),
        (["--out", "x.bundle", "--exporter", "torchscript", "--opset", "23-24"], "opset 24: choose of"),
        (
            ["--out", "x.bundle", "--layout", "static", "--opset", "20"],
            "layout static is not recorded by that exporter",
        ),
        (["--out", "x.bundle", "--precision", "fp32,int8"], "precision int8: choose of fp64, fp32, fp16, bf16"),
        (["--out", "x.bundle", "--exporter", "dynamite"], "exporter dynamite: choose of torchscript, dynamo"),
        (["--out", "x.bundle", "--against", "x.bundle"], "is what --out replaces"),
        (["--out", "x.bundle", "--against", "nowhere.bundle"], "no readable manifest.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_wish_is_refused(
    options: list[str], words: str, model: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in line_of(*conform("record", model, "--corpus", corpus, *options))
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_not_there(corpus: Path, tmp_path: Path) -> None:
    said = line_of(*conform("record", tmp_path / "nowhere", "--corpus", corpus, "--out", tmp_path / "x.bundle"))
    assert "no such directory" in said
