"""The Marian family: a local Hugging Face directory, checked, then loaded in any precision.

Hugging Face loads a damaged or incomplete directory more willingly than it should: weights that the checkpoint lacks are
filled in without an error, so what would only show as a bad translation is refused here with one line.
"""

import contextlib
import json
import os
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from sentencepiece import SentencePieceProcessor
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from backends.contract import first_line
from harness.core.errors import UserError
from harness.core.files import sha256
from harness.core.graph import Decode, Dims

BIAS = "final_logits_bias"
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DEFAULT_LANGUAGE = "zh"
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# A vocabulary may lack a few pieces of its tokenizer, which then become <unk>. More than this share is another model's.
MISSING_PIECES = 0.05


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
    """A checked MarianMT directory.

    ``pieces``: target piece of every id, index = id. ``language``: target language, as the tokenizer configuration or else
    the directory's name says. Raises UserError when anything is missing or does not fit together.
    """

    family = "marian"

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory).resolve()
        self.name = self.path.name
        if not self.path.is_dir():
            raise UserError(f"model {directory}: no such directory; give a local Hugging Face MarianMT directory")
        self.config = self._config()
        self.weights = self._weights()
        shared = self.config.share_encoder_decoder_embeddings
        self.vocab = self.config.vocab_size if shared else self.config.decoder_vocab_size
        settings = self._json("tokenizer_config.json") if (self.path / "tokenizer_config.json").is_file() else {}
        self.language = _language(settings, self.name)
        source = self._vocabulary("vocab.json", self.config.vocab_size)
        target = source
        if settings.get("separate_vocabs"):
            target = self._vocabulary("target_vocab.json", self.vocab)
        self._check_pieces("source.spm", source)
        self._check_pieces("target.spm", target)
        self.pieces = sorted(target, key=lambda piece: target[piece])
        self.tokenizer = self._tokenizer()
        for name in ("pad_token_id", "eos_token_id"):
            if getattr(self.tokenizer, name) != getattr(self.config, name):
                raise self.error(
                    f"the tokenizer has {name} {getattr(self.tokenizer, name)}, config.json {getattr(self.config, name)}",
                    "use the tokenizer that the model was trained with",
                )

    def error(self, what: str, remedy: str) -> UserError:
        return UserError(f"model {self.path}: {what}; {remedy}")

    def _json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise self.error(f"{name} is missing", "complete the directory from its source") from error
        except (OSError, ValueError) as error:
            raise self.error(f"{name} cannot be read ({error})", "copy it again from its source") from error

    def _config(self) -> MarianConfig:
        raw = self._json("config.json")
        kind = raw.get("model_type") if isinstance(raw, dict) else None
        if kind != "marian":
            raise self.error(f"config.json has model_type {kind!r}, not 'marian'", "give a MarianMT directory")
        try:
            with quiet():
                config: MarianConfig = MarianConfig.from_pretrained(self.path, local_files_only=True)
        except Exception as error:
            raise self.error(f"config.json is refused ({first_line(error)})", "correct the value") from error
        for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(config, name)
            if not isinstance(value, int) or not 0 <= value < config.vocab_size:
                raise self.error(
                    f"config.json has {name} {value!r}, the vocabulary has ids 0 to {config.vocab_size - 1}",
                    "correct config.json",
                )
        return config

    def _weights(self) -> list[str]:
        """Names of the weight files. Raises UserError when the checkpoint has no final_logits_bias."""
        found = next((name for name in WEIGHT_FILES if (self.path / name).is_file()), None)
        if found is None:
            raise self.error(f"no weights ({' or '.join(WEIGHT_FILES)})", "complete the directory from its source")
        files = [found]
        if found.endswith(".index.json"):
            shards = self._json(found).get("weight_map", {})
            keys = set(shards)
            files += sorted(set(shards.values()))
        else:
            keys = self._keys(found)
        for name in files:
            if not (self.path / name).is_file():
                raise self.error(f"the weight file {name} is missing", "complete the directory from its source")
        if BIAS not in keys:
            raise self.error(
                f"{found} has no {BIAS}; Hugging Face would load zeros and say nothing",
                "convert the checkpoint again, with its bias",
            )
        return files

    def _keys(self, name: str) -> set[str]:
        try:
            if name.endswith(".safetensors"):
                with safe_open(self.path / name, framework="pt") as stream:
                    return set(stream.keys())
            return set(torch.load(self.path / name, map_location="meta", weights_only=True))
        except pickle.UnpicklingError as error:
            raise self.error(
                f"{name} is not read: it holds more than tensors, and unpickling that runs code",
                "save the model as model.safetensors",
            ) from error
        except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, TypeError, KeyError) as error:
            raise self.error(f"{name} cannot be read ({first_line(error)})", "copy it again from its source") from error

    def _vocabulary(self, name: str, size: int) -> dict[str, int]:
        ids = self._json(name)
        if not isinstance(ids, dict) or not all(isinstance(value, int) for value in ids.values()):
            raise self.error(f"{name} does not map pieces to ids", "copy it again from its source")
        if len(ids) != size:
            raise self.error(
                f"{name} has {len(ids)} pieces, config.json says {size}",
                "use the vocabulary that the model was trained with",
            )
        if sorted(ids.values()) != list(range(size)):
            odd = next(iter(set(ids.values()) - set(range(size))), "one of them twice")
            raise self.error(f"the ids of {name} are not 0 to {size - 1} ({odd})", "copy it again from its source")
        return ids

    def _check_pieces(self, name: str, vocabulary: dict[str, int]) -> None:
        if not (self.path / name).is_file():
            raise self.error(f"{name} is missing", "complete the directory from its source")
        processor = SentencePieceProcessor()
        try:
            processor.Load(str(self.path / name))
        except (OSError, RuntimeError) as error:
            raise self.error(f"{name} is no SentencePiece model ({first_line(error)})", "copy it again") from error
        special = (processor.IsControl, processor.IsUnknown, processor.IsByte, processor.IsUnused)
        plain = [index for index in range(processor.GetPieceSize()) if not any(test(index) for test in special)]
        missing = [piece for piece in map(processor.IdToPiece, plain) if piece not in vocabulary]
        if len(missing) > MISSING_PIECES * len(plain):
            raise self.error(
                f"{len(missing)} of {len(plain)} pieces of {name} are not in the vocabulary, {missing[0]!r} first",
                "use the tokenizer that the model was trained with",
            )

    def _tokenizer(self) -> MarianTokenizer:
        try:
            with quiet():
                tokenizer: MarianTokenizer = MarianTokenizer.from_pretrained(self.path, local_files_only=True)
        except Exception as error:
            raise self.error(f"the tokenizer cannot be loaded ({first_line(error)})", "copy its files again") from error
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Encoder input of a source text, the end token last."""
        with quiet():
            ids: list[int] = self.tokenizer(text).input_ids
        return ids

    def load(self, precision: str, attention: str = "eager") -> MarianMTModel:
        """The model in a precision of DTYPES, ready to decode; recorded is ``eager`` attention. Raises UserError."""
        try:
            with quiet():
                model, report = MarianMTModel.from_pretrained(
                    self.path,
                    dtype=DTYPES[precision],
                    attn_implementation=attention,
                    local_files_only=True,
                    output_loading_info=True,
                    # Reported below in words that say which tensor it was.
                    ignore_mismatched_sizes=True,
                )
        except Exception as error:
            raise self.error(
                f"the weights cannot be loaded ({first_line(error)})", "copy them again from their source"
            ) from error
        for name, held, asked in report["mismatched_keys"]:
            raise self.error(
                f"{name} has shape {list(held)}, config.json asks for {list(asked)}",
                "use the configuration that the model was trained with",
            )
        if report["missing_keys"]:
            raise self.error(
                f"the checkpoint lacks {len(report['missing_keys'])} tensors, {min(report['missing_keys'])} first",
                "copy the weights again from their source",
            )
        for name, tensor in model.state_dict().items():
            if not torch.isfinite(tensor).all():
                raise self.error(
                    f"{name} is not finite in {precision}", "use a checkpoint that this precision can hold"
                )
        ready: MarianMTModel = model.eval().requires_grad_(False)
        return ready

    def dims(self) -> Dims:
        config = self.config
        heads = config.decoder_attention_heads
        return Dims(config.decoder_layers, heads, config.d_model // heads, config.d_model, self.vocab)

    def rules(self, model: MarianMTModel, limit: int) -> Decode:
        """The greedy loop's rules, from the generation configuration. At most ``limit`` steps are recorded."""
        settings = model.generation_config
        ids: dict[str, int] = {}
        for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(settings, name)
            value = value[0] if isinstance(value, list) and len(value) == 1 else value
            if value != getattr(self.config, name):
                raise self.error(
                    f"the generation configuration has {name} {value!r}, config.json {getattr(self.config, name)!r}",
                    "make them agree",
                )
            ids[name] = value
        words = [word[0] for word in settings.bad_words_ids or [] if len(word) == 1] + (settings.suppress_tokens or [])
        if any(not 0 <= word < self.vocab for word in words):
            raise self.error("the generation configuration suppresses ids outside the vocabulary", "correct it")
        # A decode of max_length ids has taken one step less: the first id is the start token.
        longest = settings.max_length - 1 if settings.max_length else limit
        steps = min(longest, self.config.max_position_embeddings, limit)
        if steps < 1:
            raise self.error(f"no step may be decoded (max_length {settings.max_length})", "raise max_length")
        return Decode(
            ids["decoder_start_token_id"], ids["eos_token_id"], ids["pad_token_id"], tuple(sorted(set(words))), steps
        )

    def file_hashes(self) -> dict[str, str]:
        """SHA-256 of each file that the golden depends on, by name."""
        names = ["config.json", "generation_config.json", "tokenizer_config.json", "vocab.json", "target_vocab.json"]
        names += ["source.spm", "target.spm", *self.weights]
        return {name: sha256(str(self.path / name)) for name in names if (self.path / name).is_file()}


def _language(settings: dict[str, Any], name: str) -> str:
    """Target language: ``target_lang``, else the end of a name such as ``opus-mt-en-zh``."""
    tail = re.search(r"-([a-z]{2,3})-([a-z]{2,3})\Z", name)
    return str(settings.get("target_lang") or (tail[2] if tail else DEFAULT_LANGUAGE))
