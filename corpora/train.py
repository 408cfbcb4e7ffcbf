"""Train the tiny English-Chinese MarianMT model on the grammar and save it in opus-mt's layout.

    python -m corpora.train corpora/tiny-marian-en-zh

Runs on one thread, for some minutes, and gives the same bytes each time on one machine. Prints the held-out
greedy BLEU and chrF, and exits with 1 if BLEU is below the floor.
"""

import argparse
import io
import json
import math
import platform
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import sacrebleu
import sentencepiece
import torch
import transformers
from torch.nn import functional
from tqdm import tqdm
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

from corpora.grammar import DEFAULT_SEED, KINDS, Pair, held_out, held_out_kinds, training

EOS_ID = 0
UNK_ID = 1
MAX_LENGTH = 256
SOURCE_PIECES = 530
TARGET_PIECES = 650
BLEU_FLOOR = 80.0

PEAK_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 150
TOKENS_PER_BATCH = 1600
LABEL_SMOOTHING = 0.1
EMA_START = 0.6
EMA_RATE = 0.01
IGNORE = -100

Example = tuple[list[int], list[int]]


def train_sentencepiece(lines: Sequence[str], path: Path, pieces: int, normalisation: str) -> None:
    """Train a unigram model on `lines`. The model is written from memory, so that it holds no file name."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=pieces,
        hard_vocab_limit=False,
        model_type="unigram",
        character_coverage=1.0,
        normalization_rule_name=normalisation,
        split_digits=True,
        max_sentence_length=8192,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())


def build_vocabulary(spm_files: Sequence[Path]) -> dict[str, int]:
    """The vocabulary that both sides share: `</s>` 0, `<unk>` 1, the pieces of both models, `<pad>` last."""
    pieces: set[str] = set()
    for path in spm_files:
        spm = sentencepiece.SentencePieceProcessor(model_file=str(path))
        for index in range(spm.get_piece_size()):
            if not spm.is_control(index) and not spm.is_unknown(index):
                pieces.add(spm.id_to_piece(index))
    vocabulary = {"</s>": EOS_ID, "<unk>": UNK_ID}
    for piece in sorted(pieces):
        vocabulary[piece] = len(vocabulary)
    vocabulary["<pad>"] = len(vocabulary)
    return vocabulary


def build_tokenizer(directory: Path, pairs: Sequence[Pair]) -> MarianTokenizer:
    """Train both SentencePiece models, write the vocabulary and save the tokenizer's files in `directory`."""
    sample = pairs[::3]
    # The target must keep full-width punctuation: SentencePiece's default normalisation makes it ASCII.
    train_sentencepiece([pair.en for pair in sample], directory / "source.spm", SOURCE_PIECES, "nmt_nfkc")
    train_sentencepiece([pair.zh for pair in sample], directory / "target.spm", TARGET_PIECES, "identity")
    vocabulary = build_vocabulary([directory / "source.spm", directory / "target.spm"])
    text = json.dumps(vocabulary, ensure_ascii=False, indent=0)
    (directory / "vocab.json").write_text(text + "\n", encoding="utf-8")
    tokenizer = MarianTokenizer(
        source_spm=str(directory / "source.spm"),
        target_spm=str(directory / "target.spm"),
        vocab=str(directory / "vocab.json"),
        source_lang="en",
        target_lang="zh",
        model_max_length=MAX_LENGTH,
    )
    tokenizer.save_pretrained(directory)
    return tokenizer


def encode_pairs(directory: Path, pairs: Sequence[Pair]) -> list[Example]:
    """Token ids of both sides of each pair, with the final `</s>`."""
    vocabulary: dict[str, int] = json.loads((directory / "vocab.json").read_text(encoding="utf-8"))
    source = sentencepiece.SentencePieceProcessor(model_file=str(directory / "source.spm"))
    target = sentencepiece.SentencePieceProcessor(model_file=str(directory / "target.spm"))

    def encode(spm: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
        return [vocabulary.get(piece, UNK_ID) for piece in spm.encode(text, out_type=str)] + [EOS_ID]

    examples = [(encode(source, pair.en), encode(target, pair.zh)) for pair in pairs]
    assert all(max(len(source_ids), len(target_ids)) <= MAX_LENGTH for source_ids, target_ids in examples)
    return examples


def build_model(vocabulary_size: int) -> MarianMTModel:
    """An untrained model of 2+2 layers; `<pad>` is the last token and starts the decoder."""
    pad_id = vocabulary_size - 1
    config = MarianConfig(
        vocab_size=vocabulary_size,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        max_position_embeddings=MAX_LENGTH,
        pad_token_id=pad_id,
        bos_token_id=EOS_ID,
        eos_token_id=EOS_ID,
        forced_eos_token_id=EOS_ID,
        decoder_start_token_id=pad_id,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        activation_function="swish",
        dropout=0.0,
        attention_dropout=0.0,
    )
    model = MarianMTModel(config)
    embedding = model.model.shared.weight
    with torch.no_grad():
        embedding.normal_(0.0, config.d_model**-0.5)
        embedding[pad_id] = 0.0
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "shared" not in name and "embed" not in name:
                torch.nn.init.xavier_uniform_(parameter)
    return model


def initial_bias(examples: Sequence[Example], vocabulary_size: int) -> torch.nn.Parameter:
    """Centred log frequencies of the target tokens: where training of `final_logits_bias` starts."""
    counts = Counter(token for _, target in examples for token in target)
    frequencies = torch.tensor([1.0 + counts[token] for token in range(vocabulary_size)])
    bias = (frequencies / frequencies.sum()).log()
    bias -= bias.mean()
    bias[-1] = 0.0
    return torch.nn.Parameter(bias)


def batches(examples: Sequence[Example], rng: random.Random) -> Iterator[list[Example]]:
    """Endless batches of about `TOKENS_PER_BATCH` padded tokens, each of rows of similar length."""
    pool = list(examples)
    while True:
        rng.shuffle(pool)
        for start in range(0, len(pool), 4000):
            chunk = sorted(pool[start : start + 4000], key=lambda example: (len(example[1]), len(example[0])))
            chunk_batches: list[list[Example]] = [[]]
            longest = 0
            for example in chunk:
                longest = max(longest, len(example[0]), len(example[1]))
                if chunk_batches[-1] and (len(chunk_batches[-1]) + 1) * longest > TOKENS_PER_BATCH:
                    chunk_batches.append([])
                    longest = max(len(example[0]), len(example[1]))
                chunk_batches[-1].append(example)
            rng.shuffle(chunk_batches)
            yield from chunk_batches


def pad(sequences: Sequence[list[int]], value: int) -> torch.Tensor:
    """One row per sequence, padded on the right with `value`."""
    width = max(map(len, sequences))
    return torch.tensor([ids + [value] * (width - len(ids)) for ids in sequences])


def batch_loss(model: MarianMTModel, bias: torch.Tensor, batch: Sequence[Example]) -> torch.Tensor:
    """Label-smoothed cross-entropy of the target tokens, with `bias` in place of `final_logits_bias`."""
    pad_id = model.config.pad_token_id
    source = pad([source for source, _ in batch], pad_id)
    labels = pad([target for _, target in batch], IGNORE)
    start = torch.full((len(batch), 1), pad_id)
    decoder_input = torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORE, pad_id)], dim=1)
    hidden = model.model(
        input_ids=source,
        attention_mask=(source != pad_id).long(),
        decoder_input_ids=decoder_input,
        use_cache=False,
    ).last_hidden_state
    real = labels != IGNORE
    logits = functional.linear(hidden[real], model.model.shared.weight, bias)
    return functional.cross_entropy(logits, labels[real], label_smoothing=LABEL_SMOOTHING)


def fit(model: MarianMTModel, examples: Sequence[Example], steps: int, seed: int) -> None:
    """Train `model` in place; leaves it with averaged weights that float16 holds without loss."""
    pad_id = model.config.pad_token_id
    embedding = model.model.shared.weight
    bias = initial_bias(examples, model.config.vocab_size)
    parameters = [*(parameter for parameter in model.parameters() if parameter.requires_grad), bias]
    optimizer = torch.optim.AdamW(parameters, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    average: list[torch.Tensor] = []

    def clear_padding() -> None:
        embedding[pad_id] = 0.0
        bias[pad_id] = 0.0

    model.train()
    source = batches(examples, random.Random(f"batches {seed}"))
    progress = tqdm(range(steps), desc="training", unit="step", mininterval=2.0)
    for step in progress:
        warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
        cosine = 0.5 * (1.0 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LEARNING_RATE * warm_up * (0.02 + 0.98 * cosine)
        loss = batch_loss(model, bias, next(source))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            clear_padding()
            if step >= EMA_START * steps:
                if average:
                    for mean, parameter in zip(average, parameters, strict=True):
                        mean.lerp_(parameter, EMA_RATE)
                else:
                    average = [parameter.detach().clone() for parameter in parameters]
        if step % 50 == 0:
            progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)

    with torch.no_grad():
        for mean, parameter in zip(average, parameters, strict=True):
            parameter.copy_(mean.half().float())
        clear_padding()
        model.final_logits_bias = bias.detach()[None].clone()
    model.eval()


def save(model: MarianMTModel, directory: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors (float16)."""
    pad_id = model.config.pad_token_id
    model.generation_config = GenerationConfig(
        num_beams=4,
        max_length=MAX_LENGTH,
        bad_words_ids=[[pad_id]],
        pad_token_id=pad_id,
        bos_token_id=EOS_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=pad_id,
        forced_eos_token_id=EOS_ID,
        renormalize_logits=True,
    )
    model.half().save_pretrained(directory)
    # The file holds float16 to be small; the model is meant to compute in float32.
    model.float()
    model.config.dtype = torch.float32
    model.config.save_pretrained(directory)


def translate(directory: Path, texts: Sequence[str]) -> list[str]:
    """Greedy translations by the saved model, in batches of 25 rows of mixed length."""
    tokenizer = MarianTokenizer.from_pretrained(directory)
    model = MarianMTModel.from_pretrained(directory, dtype=torch.float32).eval()
    outputs: list[str] = []
    for start in tqdm(range(0, len(texts), 25), desc="decoding", unit="batch"):
        batch = tokenizer(list(texts[start : start + 25]), return_tensors="pt", padding=True)
        with torch.inference_mode():
            ids = model.generate(**batch, num_beams=1, do_sample=False, max_length=MAX_LENGTH)
        outputs += tokenizer.batch_decode(ids, skip_special_tokens=True, use_source_tokenizer=False)
    return outputs


def score(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Corpus BLEU (sacrebleu's `zh` tokenizer) and chrF."""
    bleu = sacrebleu.corpus_bleu(outputs, [references], tokenize="zh").score
    chrf = sacrebleu.corpus_chrf(outputs, [references]).score
    return {"rows": len(outputs), "bleu": round(bleu, 2), "chrf": round(chrf, 2)}


def evaluate(directory: Path, seed: int) -> dict[str, dict[str, float]]:
    """Scores of the saved model on the held-out rows: all of them, then each kind of row."""
    pairs, kinds = held_out(seed), held_out_kinds(seed)
    outputs = translate(directory, [pair.en for pair in pairs])
    scores = {"all": score(outputs, [pair.zh for pair in pairs])}
    for kind in KINDS:
        chosen = [index for index, row_kind in enumerate(kinds) if row_kind == kind]
        scores[kind] = score([outputs[index] for index in chosen], [pairs[index].zh for index in chosen])
    return scores


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, save, evaluate; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m corpora.train", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="directory to write the model to")
    parser.add_argument("--steps", type=int, default=1800, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="seed of text, weights and batches")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error("--steps must be at least 1")

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)

    directory: Path = options.out
    directory.mkdir(parents=True, exist_ok=True)
    pairs = training(options.seed)
    tokenizer = build_tokenizer(directory, pairs)
    examples = encode_pairs(directory, pairs)
    model = build_model(len(tokenizer))
    size = model.num_parameters(only_trainable=True) + len(tokenizer)
    print(f"{len(examples)} training rows, vocabulary of {len(tokenizer)}, {size} trained parameters")
    fit(model, examples, options.steps, options.seed)
    save(model, directory)

    scores = evaluate(directory, options.seed)
    record = {
        "steps": options.steps,
        "seed": options.seed,
        "training_rows": len(examples),
        "vocabulary": len(tokenizer),
        "trained_parameters": size,
        "held_out_greedy": scores,
        "versions": {
            "python": platform.python_version(),
            "sacrebleu": sacrebleu.__version__,
            "sentencepiece": sentencepiece.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    (directory / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for name, figures in scores.items():
        print(f"{name}: {figures['rows']} rows, BLEU {figures['bleu']:.2f}, chrF {figures['chrf']:.2f}")
    if scores["all"]["bleu"] < BLEU_FLOOR:
        print(f"BLEU is below {BLEU_FLOOR:g}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
