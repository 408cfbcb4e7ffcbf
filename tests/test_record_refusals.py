"""What ``conform record`` refuses: one line that says what, where and what to do, and nothing is left behind."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import models
from tests.models import HEADER, Spoil, break_json, conform, copy_tensor, drop_tensor, gone, line_of, scrap


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "toy-en-zh"
    models.make_model(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpora") / "five.tsv"
    models.make_corpus(path)
    return path


class BadModel(NamedTuple):
    spoil: Spoil
    says: str


def separate_without_padding(folder: Path) -> None:
    """The target's last piece is no padding: config.json's id means two things."""
    models.separate_vocabularies(folder)
    vocabulary = json.loads((folder / "target_vocab.json").read_text(encoding="utf-8"))
    renamed = {piece.replace("<pad>", "pad"): index for piece, index in vocabulary.items()}
    models.write_json(folder / "target_vocab.json", renamed)


def shared_in_the_configuration_alone(folder: Path) -> None:
    models.separate_vocabularies(folder, more=0)
    break_json("config.json", share_encoder_decoder_embeddings=True)(folder)


def listed(name: str) -> Spoil:
    return lambda folder: models.write_json(folder / name, [1])


SHARED, LAYER = "model.shared.weight", "model.decoder.layers.0.fc1.weight"
SPOILED = [
    ("no bias", drop_tensor("final_logits_bias"), "has no final_logits_bias"),
    ("no tensor", drop_tensor("model.encoder.layers.0.fc1.weight"), "lacks 1 tensors, model.encoder.layers.0"),
    ("more layers", break_json("config.json", decoder_layers=2), "lacks 26 tensors, model.decoder.layers.1."),
    ("more encoder layers", break_json("config.json", encoder_layers=2), "lacks 16 tensors, model.encoder.layers.1."),
    (
        "fewer layers",
        copy_tensor(LAYER, "model.decoder.layers.1.fc1.weight", 1),
        "has 1 tensors that config.json has no place for, model.decoder.layers.1.fc1.weight first",
    ),
    (
        "fewer encoder layers",
        copy_tensor(LAYER, "model.encoder.layers.1.fc1.weight", 1),
        "has 1 tensors that config.json has no place for, model.encoder.layers.1.fc1.weight first",
    ),
    (
        "other sizes",
        break_json("config.json", decoder_ffn_dim=64),
        "model.decoder.layers.0.fc1.bias has shape [48], config.json asks for [64]",
    ),
    (
        "other positions",
        copy_tensor(SHARED, "model.encoder.embed_positions.weight", 1),
        "model.encoder.embed_positions.weight has shape",
    ),
    ("not shared", break_json("config.json", share_encoder_decoder_embeddings=False), "lacks 3 tensors"),
    (
        "embeddings that differ",
        copy_tensor(SHARED, "model.encoder.embed_tokens.weight", 2),
        "model.encoder.embed_tokens.weight differs from the decoder's embedding",
    ),
    ("projection that differs", copy_tensor(SHARED, "lm_head.weight", 2), "lm_head.weight differs from"),
    ("shared in config.json alone", shared_in_the_configuration_alone, "vocab.json and target_vocab.json differ"),
    ("target without padding", separate_without_padding, "the target vocabulary has pad_token_id None"),
    ("not finite", models.change_tensors(models.not_finite), "final_logits_bias is not finite"),
    ("other tokenizer", models.other_vocabulary, "pieces of source.spm are not in the vocabulary"),
    ("vocabulary of another size", models.smaller_vocabulary, "vocab.json has"),
    ("no config", gone("config.json"), "config.json is missing"),
    ("no weights", gone("model.safetensors"), "no weights"),
    ("no source.spm", gone("source.spm"), "source.spm is missing"),
    ("no target.spm", gone("target.spm"), "target.spm is missing"),
    ("no vocabulary", gone("vocab.json"), "vocab.json is missing"),
    ("damaged config", scrap("config.json"), "config.json cannot be read"),
    ("tokenizer configuration that is a list", listed("tokenizer_config.json"), "tokenizer_config.json holds no JSON"),
    ("vocabulary that is a list", listed("vocab.json"), "vocab.json holds no JSON object"),
    ("heads that do not divide", break_json("config.json", decoder_attention_heads=3), "the weights cannot be loaded"),
    ("damaged weights", scrap("model.safetensors"), "model.safetensors cannot be read"),
    ("damaged source.spm", scrap("source.spm"), "source.spm is no SentencePiece model"),
    ("other architecture", break_json("config.json", model_type="t5"), "model_type 't5', not 'marian'"),
    (
        "start token outside",
        break_json("config.json", decoder_start_token_id=99999),
        "decoder_start_token_id 99999",
    ),
]
MODELS = {name: BadModel(spoil, says) for name, spoil, says in SPOILED}


@pytest.mark.parametrize("name", MODELS)
def test_a_bad_model_is_refused(name: str, model: Path, corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / model.name
    shutil.copytree(model, folder)
    MODELS[name].spoil(folder)
    line = line_of(*conform("record", folder, "--corpus", corpus, "--out", tmp_path / "out.bundle", "--opset", "17"))
    assert MODELS[name].says in line
    assert str(folder) in line
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
    path = tmp_path / "bad.tsv"
    if content is not None:
        path.write_bytes(content)
    line = line_of(*conform("record", model, "--corpus", path, "--out", tmp_path / "out.bundle", "--opset", "17"))
    assert words in line
    assert not (tmp_path / "out.bundle").exists()
    assert len(list(tmp_path.iterdir())) == (content is not None)


def test_what_is_no_bundle_is_never_replaced(model: Path, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work", encoding="utf-8")
    line = line_of(*conform("record", model, "--corpus", corpus, "--out", tmp_path / "home", "--overwrite"))
    assert "is no bundle, so it is left alone" in line
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
    line = line_of(*conform("record", tmp_path / "nowhere", "--corpus", corpus, "--out", tmp_path / "x.bundle"))
    assert "no such directory" in line
