"""Converts text to numbers: counts its words and their runs of three letters, each in a column that
its hash selects.

The hashing trick of Weinberger et al., Feature Hashing for Large Scale Multitask Learning, 2009,
with the n-grams within words of Bojanowski et al., Enriching Word Vectors with Subword Information,
2017. Nothing is learned or stored, so equal texts have equal numbers on every machine.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

MAX_TEXT = 2_048
"""Maximum characters of a text that are read, before and after normalization, which may expand one
character to 18."""
NUM_LETTERS = 3
"""Length of the runs, in characters."""
SLICE_TEXTS = 1_024
"""Number of texts with their n-grams in memory at a time: at most 200 MB, if all have maximum
length."""
WORD = re.compile(
    "[^"
    # Controls, blanks and the signs of ASCII; blanks and signs of Latin-1.
    "\x00-/:-@\\[-`{-\xa9\xab-\xb1\xb4\xb6-\xb8\xbb\xbf"
    # Blanks, dashes, quotes and the like; the signs of Chinese and Japanese.
    "\u1680\u2000-\u206f\u3000-\u3004\u3008-\u3020\ufeff"
    "]+"
)
"""A word. The pattern lists the characters that are not in words, because Python's `\\w` changes
with each version of Unicode, and cuts words of Hindi at their vowels."""


def ngram_features(texts: Sequence[str], width: int) -> NDArray[np.float64]:
    """Convert texts to numbers: float64[n, width], rows of length 1, or 0 for a text without words.

    A text is normalized (NFKC) and in lower case, and each word has a blank on both sides: the word
    and its runs of three characters are its n-grams. Each adds 1 or -1 to a column. Sign and column
    come from the CRC32C of the n-gram's UTF-8, mixed by `_mix_bits`: the lowest bit is the sign,
    the others modulo `width` are the column.
    """
    out = np.zeros((len(texts), width))
    for at in range(0, len(texts), SLICE_TEXTS):
        # Texts have many words in common, so cache their hashes.
        hashes_of = functools.cache(_hashes)
        hashes, ends = list[int](), [0]
        for text in texts[at : at + SLICE_TEXTS]:
            for word in _words(text):
                hashes += hashes_of(word)
            ends.append(len(hashes))
        row_G = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        bits_G = _mix_bits(np.array(hashes, np.uint32))
        sign_G = 1.0 - 2.0 * (bits_G & np.uint32(1))
        column_G = (bits_G >> np.uint32(1)) % np.uint32(width)
        counts = np.bincount(row_G * width + column_G, sign_G, (len(ends) - 1) * width)
        out[at : at + SLICE_TEXTS] = counts.reshape(-1, width)

    # Sums of whole numbers are exact, so every machine gets the same length. n-grams that share a
    # column may leave nothing of a short text.
    length = np.sqrt(np.square(out).sum(1, keepdims=True))
    out /= np.maximum(length, 1)
    return out


def _words(text: str) -> list[str]:
    """Split a text into its words, in order."""
    normal = unicodedata.normalize("NFKC", text[:MAX_TEXT]).lower()[:MAX_TEXT]
    return WORD.findall(normal)


def _hashes(word: str) -> list[int]:
    """The CRC32C of each n-gram of a word."""
    padded = f" {word} "
    runs = [padded[at : at + NUM_LETTERS] for at in range(len(padded) - NUM_LETTERS + 1)]
    return [crc32c(ngram.encode(errors="replace")) for ngram in (padded, *runs)]


def _mix_bits(hash_G: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Mix the bits of hashes, so that each bit depends on all: the finalizer of MurmurHash3.

    A CRC is linear: without mixing, words that differ in the same way would all share columns or
    none.
    """
    hash_G = (hash_G ^ (hash_G >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hash_G = (hash_G ^ (hash_G >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hash_G ^ (hash_G >> np.uint32(16))
