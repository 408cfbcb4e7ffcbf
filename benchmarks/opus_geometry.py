"""A random-weight MarianMT of opus-mt-en-zh's geometry: 77.9 million parameters, the size that users bring.

``python benchmarks/opus_geometry.py OUT [D_MODEL LAYERS HEADS VOCABULARY]`` writes a directory for `conform record`. What it
translates to is noise; what that costs is as real as with trained weights.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

EMBEDDED = Path(__file__).resolve().parent.parent / "corpora" / "tiny-marian-en-zh"
OPUS = (512, 6, 8, 65001)


def make(out: Path, width: int, layers: int, heads: int, vocabulary: int) -> Path:
    """Write the model, with the embedded model's SentencePiece files and a vocabulary filled up to the real size."""
    out.mkdir(parents=True)
    pieces = json.loads((EMBEDDED / "vocab.json").read_text(encoding="utf-8"))
    del pieces["<pad>"]
    pieces.update({f"<filler{number}>": number for number in range(len(pieces), vocabulary - 1)})
    pieces["<pad>"] = vocabulary - 1
    (out / "vocab.json").write_text(json.dumps(pieces, ensure_ascii=False), encoding="utf-8")
    settings = json.loads((EMBEDDED / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.pop("added_tokens_decoder", None)  # it holds the embedded model's ids
    (out / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    for name in ("source.spm", "target.spm"):
        shutil.copy(EMBEDDED / name, out / name)
    torch.manual_seed(0)
    special = {"pad_token_id": vocabulary - 1, "eos_token_id": 0, "decoder_start_token_id": vocabulary - 1}
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))
    }
    config = MarianConfig(
        vocab_size=vocabulary,
        d_model=width,
        max_position_embeddings=512,
        scale_embedding=True,
        activation_function="swish",
        init_std=0.02,
        bos_token_id=0,
        **sides,
        **special,
    )
    model = MarianMTModel(config)
    model.final_logits_bias = torch.randn_like(model.final_logits_bias)
    model.generation_config = GenerationConfig(
        max_length=512, bad_words_ids=[[vocabulary - 1]], bos_token_id=0, **special
    )
    model.save_pretrained(out)
    return out


if __name__ == "__main__":
    make(Path(sys.argv[1]), *(map(int, sys.argv[2:]) if len(sys.argv) > 2 else OPUS))
