"""The numbers of a text, plainly: docs/sources.md, step by step."""

import math
import unicodedata

POLYNOMIAL = 0x82F63B78
"""CRC32C, Castagnoli, bits reversed."""
SIGNS = ({chr(c) for c in range(0xC0) if chr(c) not in "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZªºµ²³¹¼½¾"}
         | {chr(c) for c in (*range(0x2000, 0x2070), *range(0x3000, 0x3005), *range(0x3008, 0x3021), 0x1680, 0xFEFF)})


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ POLYNOMIAL * (crc & 1)
    return crc ^ 0xFFFFFFFF


def finalized(h):
    h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
    h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


def ngrams(text):
    text = unicodedata.normalize("NFKC", text[:2048]).lower()[:2048]
    for word in "".join(" " if c in SIGNS else c for c in text).split(" "):
        if word:
            padded = " " + word + " "
            yield from [padded, *(padded[i : i + 3] for i in range(len(padded) - 2))]


def numbers_of_text(text, width):
    out = [0] * width
    for ngram in ngrams(text):
        h = finalized(crc32c(ngram.encode(errors="replace")))
        out[(h >> 1) % width] += -1 if h & 1 else 1
    length = math.sqrt(sum(n * n for n in out))
    return [n / length if length else 0.0 for n in out]
