"""Languages as a text metric needs them: one code each, whatever a model's configuration calls it."""

import re

CHINESE = ("zho", "chi", "cmn", "yue", "wuu", "nan", "hak", "gan", "hsn", "lzh", "zht", "zhs")
ISO_639_1 = {
    **dict.fromkeys(CHINESE, "zh"),
    "jpn": "ja",
    "kor": "ko",
    "tha": "th",
    "lao": "lo",
    "khm": "km",
    "mya": "my",
    "bur": "my",
    "bod": "bo",
    "tib": "bo",
    "dzo": "dz",
}
"""Two letters for the longer codes of languages that are written without spaces, or are scored by character."""
TOKENIZERS = {"zh": "zh", **dict.fromkeys(("ja", "ko", "th", "lo", "km", "my", "bo", "dz"), "char")}
"""sacrebleu's tokenizer where its default, 13a, would take a whole sentence for one word."""
CODES = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo
es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg
ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn
no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta
te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
KNOWN = frozenset(CODES.split())
"""The codes of ISO 639-1."""


def normalise(code: str) -> str:
    """The primary subtag, in two letters where known: ``zh`` for ``ZH``, ``zh-CN``, ``zho``, ``cmn_Hans``, ``>>zho<<``."""
    primary = re.split(r"[-_]", code.strip().strip("<>").casefold())[0]
    return ISO_639_1.get(primary, primary)


def bleu_tokenizer(code: str) -> str:
    """The name of sacrebleu's tokenizer for a language; 13a for one that is written with spaces, or unknown."""
    return TOKENIZERS.get(normalise(code), "13a")
