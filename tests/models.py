"""MarianMT directories with random weights, ways to spoil them, and ``conform`` in this process, which has torch already."""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from conform import cli
from tests import helpers

SENTENCEPIECE = {
    "vocab_size": 400,
    "hard_vocab_limit": False,
    "bos_id": -1,
    "eos_id": 0,
    "unk_id": 1,
    "character_coverage": 1.0,
    "num_threads": 1,
    "minloglevel": 2,
}
HEADER = "id\tdomain\tlicence\tsource\treference"


def make_model(folder: Path) -> None:
    """A MarianMT directory as Optimum users have it: d 32, one layer a side, a vocabulary of its own."""
    folder.mkdir()
    stream = io.BytesIO()
    lines = helpers.CORPUS.read_text(encoding="utf-8").splitlines()[1:200]
    text = [line.split("\t")[column] for line in lines for column in (3, 4)]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=stream, **SENTENCEPIECE)
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(stream.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=stream.getvalue())
    vocabulary = {pieces.id_to_piece(index): index for index in range(pieces.get_piece_size())}
    vocabulary["<pad>"] = len(vocabulary)
    write_json(folder / "vocab.json", vocabulary)
    _random_model(len(vocabulary)).save_pretrained(folder)
    MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        str(folder / "vocab.json"),
        source_lang="en",
        target_lang="zh",
    ).save_pretrained(folder)


def _random_model(size: int) -> MarianMTModel:
    """``size``: pieces of the vocabulary, padding last."""
    pad = size - 1
    special = {"pad_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0, "decoder_start_token_id": pad}
    generation = {"bad_words_ids": [[pad]], "num_beams": 1, "max_length": 256}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, **heads}
    embedding = {"scale_embedding": True, "static_position_embeddings": True, "max_position_embeddings": 256}
    shared = {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}
    config = MarianConfig(
        vocab_size=size,
        decoder_vocab_size=size,
        d_model=32,
        bos_token_id=0,
        activation_function="swish",
        **{**sizes, **embedding, **shared, **special, **generation},
    )
    torch.manual_seed(5)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
        model.final_logits_bias.normal_(0, 1.0)
        model.final_logits_bias[0, 0] = 3.0
    model.generation_config.update(**special, **generation)
    return model


def separate_vocabularies(folder: Path, more: int = 7) -> None:
    """Give the source a vocabulary of its own, ``more`` pieces larger, with other ids; its output stays.

    Padding, end and unknown keep their ids, as the decode loop has one of each.
    """
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    size, pad = len(vocabulary), vocabulary["<pad>"]
    plain = [index for index in range(size + more) if index not in (0, 1, pad)]
    kept = sorted(index for index in vocabulary.values() if index not in (0, 1, pad))
    moved = {**dict(zip(kept, reversed(plain), strict=False)), 0: 0, 1: 1, pad: pad}
    source = {piece: moved[index] for piece, index in vocabulary.items()}
    unused = sorted(set(plain) - set(source.values()))
    source |= {f"unused{index}": index for index in unused}
    write_json(folder / "target_vocab.json", vocabulary)
    write_json(folder / "vocab.json", source)
    weights = load_file(folder / "model.safetensors")
    target = weights.pop("model.shared.weight")
    encoder = torch.zeros(size + more, target.shape[1])
    for index, new in moved.items():
        encoder[new] = target[index]
    weights |= {"model.encoder.embed_tokens.weight": encoder, "model.decoder.embed_tokens.weight": target}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    break_json("config.json", share_encoder_decoder_embeddings=False, vocab_size=size + more)(folder)
    break_json("tokenizer_config.json", separate_vocabs=True, target_vocab_file="target_vocab.json")(folder)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def make_corpus(path: Path) -> None:
    """Five rows of the corpus, of mixed lengths."""
    lines = helpers.CORPUS.read_text(encoding="utf-8").splitlines()
    rows = [lines[1], lines[30], lines[60], lines[100], lines[150]]
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")


def conform(*arguments: object) -> tuple[int, str, str]:
    """``conform`` in this process, which has torch already: exit code, output, errors."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = cli.main(list(map(str, arguments)))
    return code, out.getvalue(), errors.getvalue()


def line_of(code: int, out: str, errors: str) -> str:
    """The one line of a refusal. A progress bar may stand before it."""
    assert code == 2, errors
    assert "Traceback" not in errors
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, errors
    assert errors.splitlines()[-1] == lines[0]
    assert "; " in lines[0] or "choose of" in lines[0], "it says what to do"
    return lines[0]


Spoil = Callable[[Path], object]
"""Changes a model directory."""


def break_json(name: str, **values: Any) -> Spoil:
    """Other values of some keys."""

    def spoil(folder: Path) -> None:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        write_json(folder / name, {**content, **values})

    return spoil


def change_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    """``change`` gets the tensors of the checkpoint by name."""

    def spoil(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return spoil


def drop_tensor(name: str) -> Spoil:
    return change_tensors(lambda weights: weights.pop(name))


def copy_tensor(name: str, new: str, factor: float) -> Spoil:
    """Add a tensor to the checkpoint: ``factor`` times another one."""
    return change_tensors(lambda weights: weights.update({new: weights[name] * factor}))


def not_finite(weights: dict[str, torch.Tensor]) -> None:
    weights["final_logits_bias"][0, 3] = float("nan")


def other_vocabulary(folder: Path) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    special = ("</s>", "<unk>", "<pad>")
    changed = {piece if piece in special else f"other{index}": index for piece, index in vocabulary.items()}
    write_json(folder / "vocab.json", changed)


def smaller_vocabulary(folder: Path) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    write_json(folder / "vocab.json", dict(list(vocabulary.items())[:-1]))


def gone(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def scrap(name: str) -> Spoil:
    return lambda folder: (folder / name).write_bytes(b"\x00scrap")
