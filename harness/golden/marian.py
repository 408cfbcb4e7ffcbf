"""The Marian family: a local Hugging Face directory, checked, then loaded in any precision.

Hugging Face loads a damaged or incomplete directory more willingly than it should: weights that the checkpoint lacks are
filled in, weights that the configuration has no place for are left out, and neither is an error. What would only show as a
bad translation is refused here with one line.
"""

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from backends.contract import first_line
from harness.core import language
from harness.core.graph import Decode, Dims
from harness.golden.directory import Directory
from harness.golden.vocabulary import TRAINED_WITH, Vocabularies, pieces

BIAS = "final_logits_bias"
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DEFAULT_LANGUAGE = "zh"
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "vocab.json",
    "target_vocab.json",
    "source.spm",
    "target.spm",
)
"""What the golden depends on, beside the weights."""
SAME_CONFIG = "use the configuration that the model was trained with"
SAME_SOURCE = "copy the weights and config.json again from one source"
SAME_TOKENIZER = "use the tokenizer that the model was trained with"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Hugging Face's progress bars and warnings off the terminal: this module raises what matters."""
    level = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()


class Marian:
    """A checked MarianMT directory. Raises UserError when anything is missing or does not fit together.

    ``language``: normalised code of the target language, as ``target_lang`` of the tokenizer's configuration or else the
    directory's name says; ``language_stated``: whether either does.
    """

    family = "marian"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.directory = Directory(path)
        self.name = self.directory.name
        self.config = _config(self.directory)
        self.weights, tensors = self.directory.weights()
        if BIAS not in tensors:
            raise self.directory.error(
                f"{self.weights[0]} has no {BIAS}; Hugging Face would load zeros and say nothing",
                "convert the checkpoint again, with its bias",
            )
        shared = self.config.share_encoder_decoder_embeddings
        self.vocab: int = self.config.vocab_size if shared else self.config.decoder_vocab_size
        settings = self.directory.json("tokenizer_config.json", optional=True)
        stated = _language(settings, self.name)
        self.language, self.language_stated = language.normalise(stated or DEFAULT_LANGUAGE), bool(stated)
        separate = bool(settings.get("separate_vocabs"))
        self.vocabularies = Vocabularies.read(self.directory, (self.config.vocab_size, self.vocab), separate)
        if shared and self.vocabularies.source != self.vocabularies.target:
            what = "vocab.json and target_vocab.json differ, config.json says share_encoder_decoder_embeddings"
            raise self.directory.error(what, SAME_CONFIG)
        self.tokenizer = self._tokenizer()
        self._check_special_ids()

    @property
    def pieces(self) -> list[str]:
        """Target piece of every id, index = id."""
        return pieces(self.vocabularies.target)

    @property
    def source_pieces(self) -> list[str] | None:
        """Source piece of every id; None where the target's are the same."""
        source, target = self.vocabularies
        return None if source == target else pieces(source)

    def _tokenizer(self) -> MarianTokenizer:
        try:
            with quiet():
                tokenizer: MarianTokenizer = MarianTokenizer.from_pretrained(self.directory.path, local_files_only=True)
        except Exception as error:
            what = f"the tokenizer cannot be loaded ({first_line(error)})"
            raise self.directory.error(what, "copy its files again") from error
        return tokenizer

    def _check_special_ids(self) -> None:
        """The decode loop has one padding and one end id for both sides."""
        for name, piece in (("pad_token_id", "pad_token"), ("eos_token_id", "eos_token")):
            value = getattr(self.config, name)
            if getattr(self.tokenizer, name) != value:
                what = f"the tokenizer has {name} {getattr(self.tokenizer, name)}, config.json {value}"
                raise self.directory.error(what, SAME_TOKENIZER)
            target = self.vocabularies.target.get(getattr(self.tokenizer, piece))
            if target != value:
                what = f"the target vocabulary has {name} {target}, config.json {value}"
                raise self.directory.error(what, TRAINED_WITH)

    def encode(self, text: str) -> list[int]:
        """Encoder input of a source text, the end token last."""
        with quiet():
            ids: list[int] = self.tokenizer(text).input_ids
        return ids

    def load(self, precision: str, attention: str = "eager") -> MarianMTModel:
        """The model in a precision of DTYPES, ready to decode; ``eager`` attention is what is recorded. Raises UserError."""
        try:
            with quiet():
                model, report = MarianMTModel.from_pretrained(
                    self.directory.path,
                    dtype=DTYPES[precision],
                    attn_implementation=attention,
                    local_files_only=True,
                    output_loading_info=True,
                    # Reported below in words that say which tensor it was.
                    ignore_mismatched_sizes=True,
                )
        except Exception as error:
            what = f"the weights cannot be loaded ({first_line(error)})"
            raise self.directory.error(what, SAME_SOURCE) from error
        self._check_loaded(model, report)
        for name, tensor in model.state_dict().items():
            if not torch.isfinite(tensor).all():
                what = f"{name} is not finite in {precision}"
                raise self.directory.error(what, "use a checkpoint that this precision can hold")
        ready: MarianMTModel = model.eval().requires_grad_(False)
        return ready

    def _check_loaded(self, model: MarianMTModel, report: dict[str, Any]) -> None:
        """Raise UserError unless every tensor of the checkpoint is where config.json says, and none is filled in."""
        for name, stored, asked in sorted(report["mismatched_keys"])[:1]:
            what = f"{name} has shape {list(stored)}, config.json asks for {list(asked)}"
            raise self.directory.error(what, SAME_CONFIG)
        missing, unexpected = report["missing_keys"], report["unexpected_keys"]
        if missing:
            what = f"the checkpoint lacks {len(missing)} tensors, {min(missing)} first"
            raise self.directory.error(what, SAME_SOURCE)
        if unexpected:
            what = f"the checkpoint has {len(unexpected)} tensors that config.json has no place for, {min(unexpected)} first"
            raise self.directory.error(what, SAME_CONFIG)
        for name, tensor, other, flag in self._tied(model):
            if not torch.equal(tensor, other):
                what = f"{name} differs from the decoder's embedding, config.json says {flag}"
                raise self.directory.error(what, SAME_CONFIG)

    def _tied(self, model: MarianMTModel) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, str]]:
        """(name, tensor, tensor that must equal it, setting that says so): transformers keeps both where they differ."""
        embedding = model.model.decoder.embed_tokens.weight
        if self.config.share_encoder_decoder_embeddings:
            source = model.model.encoder.embed_tokens.weight
            yield "model.encoder.embed_tokens.weight", source, embedding, "share_encoder_decoder_embeddings"
        if self.config.tie_word_embeddings:
            yield "lm_head.weight", model.lm_head.weight, embedding, "tie_word_embeddings"

    def dims(self) -> Dims:
        """Sizes of the decoder."""
        config = self.config
        heads = config.decoder_attention_heads
        return Dims(config.decoder_layers, heads, config.d_model // heads, config.d_model, self.vocab)

    def file_hashes(self) -> dict[str, str]:
        """SHA-256 of each file that the golden depends on, by name."""
        return self.directory.hashes([*FILES, *self.weights])


def decode_rules(marian: Marian, model: MarianMTModel, limit: int) -> Decode:
    """The greedy loop's rules, from the generation configuration. At most ``limit`` steps are recorded. Raises UserError."""
    settings, config, directory = model.generation_config, marian.config, marian.directory
    ids: dict[str, int] = {}
    for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(settings, name)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if value != getattr(config, name):
            what = f"the generation configuration has {name} {value!r}, config.json {getattr(config, name)!r}"
            raise directory.error(what, "make them agree")
        ids[name] = value
    words = [word[0] for word in settings.bad_words_ids or [] if len(word) == 1] + (settings.suppress_tokens or [])
    if any(not 0 <= word < marian.vocab for word in words):
        raise directory.error("the generation configuration suppresses ids outside the vocabulary", "correct it")
    # A decode of max_length ids has taken one step less: the first id is the start token.
    longest = settings.max_length - 1 if settings.max_length else limit
    steps = min(longest, config.max_position_embeddings, limit)
    if steps < 1:
        raise directory.error(f"no step may be decoded (max_length {settings.max_length})", "raise max_length")
    return Decode(
        ids["decoder_start_token_id"], ids["eos_token_id"], ids["pad_token_id"], tuple(sorted(set(words))), steps
    )


def _config(directory: Directory) -> MarianConfig:
    kind = directory.json("config.json").get("model_type")
    if kind != "marian":
        raise directory.error(f"config.json has model_type {kind!r}, not 'marian'", "give a MarianMT directory")
    try:
        with quiet():
            config: MarianConfig = MarianConfig.from_pretrained(directory.path, local_files_only=True)
    except Exception as error:
        raise directory.error(f"config.json is refused ({first_line(error)})", "correct the value") from error
    target = config.vocab_size if config.share_encoder_decoder_embeddings else config.decoder_vocab_size
    size = min(config.vocab_size, target)
    for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        value = getattr(config, name)
        end = target if name == "decoder_start_token_id" else size
        if not isinstance(value, int) or not 0 <= value < end:
            what = f"config.json has {name} {value!r}, the vocabulary has ids 0 to {end - 1}"
            raise directory.error(what, "correct config.json")
    return config


def _language(settings: dict[str, Any], name: str) -> str:
    """Target language: ``target_lang``, else the end of a name such as ``opus-mt-en-zh`` or ``mt-en-zh_TW``, else empty."""
    tail = re.search(r"-([a-z]{2,3})-([a-z]{2,3}([-_][A-Za-z]{2,4})?)\Z", name)
    return str(settings.get("target_lang") or (tail[2] if tail else ""))
