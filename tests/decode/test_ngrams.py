"""Text as numbers: the same as a plain reference, near for texts that share words, bounded for any text."""

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamd.decode.ngrams import ngram_features
from tests.decode import ngrams_reference
from tests.decode.ngrams_reference import numbers_of_text


def test_the_reference_has_the_same_crc():
    assert ngrams_reference.crc32c(b"123456789") == crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(("text", "ngrams"), [
    ("Cat", [" cat ", " ca", "cat", "at "]), ("a", [" a ", " a "]), ("snake_case, it's", [" snake ", " sn", "sna", "nak", "ake", "ke ", " case ", " ca", "cas", "ase", "se ", " it ", " it", "it ", " s ", " s "]),
    ("", []), ("?! _", []), ("ﬁ", [" fi ", " fi", "fi "]), ("日本、語", [" 日本 ", " 日本", "日本 ", " 語 ", " 語 "]), ("हिन्दी", [" हिन्दी ", " हि", "हिन", "िन्", "न्द", "्दी", "दी "]), ("½", [" 1 ", " 1 ", " 2 ", " 2 "])])
def test_the_ngrams_of_a_text_are_its_words_and_their_runs_of_three_characters(text, ngrams):
    assert list(ngrams_reference.ngrams(text)) == ngrams
    assert ngram_features([text], 1 << 16)[0].tolist() == numbers_of_text(text, 1 << 16)


TEXTS = st.one_of(st.text(max_size=40), st.text("aAbÉéß _-'\u0301\u00a0\u200dﬁ½日、\ud800😀", max_size=60))


@hypothesis_settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(TEXTS, max_size=5), st.integers(1, 70))
def test_many_texts_at_once_have_the_numbers_of_the_reference(texts, width):
    found = ngram_features(texts, width)
    assert found.shape == (len(texts), width) and found.tolist() == [numbers_of_text(text, width) for text in texts]


def test_more_texts_than_are_held_at_once_each_have_their_own_row():
    texts = [f"item {i}" for i in range(2_100)]
    assert ngram_features(texts, 16).tolist() == [numbers_of_text(text, 16) for text in texts]


def test_numbers_are_those_of_every_release():
    """Logs keep them: a change of one of these would mix two meanings in a log."""
    assert np.rint(ngram_features(["Red running shoes, size 9½"], 8) * 1000).astype(int).tolist() == [[-151, 151, -302, -905, -151, -151, 0, 0]]


def test_texts_that_share_words_are_near_and_others_are_far():
    red, reds, blue = ngram_features(["red running shoes", "Shoes for running: RED!", "a teapot of porcelain"], 256)
    assert red @ reds > 0.7 and abs(red @ blue) < 0.2


def test_words_that_differ_alike_share_a_column_seldom():
    """The CRCs of words that differ by the same bit in the same place differ by the same bits too: without the finalizer all or none would."""
    column = np.abs(ngram_features([chr(0x4E00 + i) for i in range(4000)], 16)).argmax(1)
    assert 0.03 < (column[::2] == column[1::2]).mean() < 0.1


@pytest.mark.parametrize("text", ["x" * 3000, "a " * 3000, "\ufdfa" * 3000, "\u0344\u0327" * 1500])
def test_a_text_is_cut_where_the_page_says(text):
    assert ngram_features([text], 64).tolist() == ngram_features([text[:2048] + "anything else"], 64).tolist() == [numbers_of_text(text, 64)]
    assert np.isclose(np.linalg.norm(ngram_features([text], 64)), 1)
