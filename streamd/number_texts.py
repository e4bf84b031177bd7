"""Numbers with their nouns, as people read them."""


def count_noun(number: int, noun: str) -> str:
    """A number with its noun, as "1 window" or "1,200 windows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """How often something happened: "once", or "0 times"."""
    return "once" if number == 1 else f"{number:,} times"
