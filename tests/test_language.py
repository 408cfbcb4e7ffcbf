"""A language has one code, and the metric a tokenizer that sees words in it."""

import pytest

from harness.core.language import KNOWN, TOKENIZERS, bleu_tokenizer, normalise


@pytest.mark.parametrize(
    "code",
    ["zh", "ZH", "zh-CN", "zh_TW", "zho", "chi", "cmn", "cmn_Hans", "yue_Hant", "zho_Hans", ">>cmn_Hans<<", " zh "],
)
def test_chinese_has_many_codes(code: str) -> None:
    assert normalise(code) == "zh"
    assert bleu_tokenizer(code) == "zh"


@pytest.mark.parametrize(
    "code, normal, tokenizer",
    [
        ("ja", "ja", "char"),
        ("jpn_Jpan", "ja", "char"),
        ("ja_XX", "ja", "char"),
        ("kor_Hang", "ko", "char"),
        ("tha_Thai", "th", "char"),
        ("en", "en", "13a"),
        ("de_DE", "de", "13a"),
        ("zhuang", "zhuang", "13a"),
        ("", "", "13a"),
    ],
)
def test_other_languages(code: str, normal: str, tokenizer: str) -> None:
    assert (normalise(code), bleu_tokenizer(code)) == (normal, tokenizer)


def test_every_language_with_a_tokenizer_is_known() -> None:
    assert set(TOKENIZERS) <= KNOWN
    assert "xx" not in KNOWN
