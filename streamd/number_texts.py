"""Numbers with their nouns, as people read them."""


def count_noun(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun, as "1 window" or "1,200 windows". plural: if not formed by an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def times(number: int) -> str:
    """How often something happened: "once", or "0 times"."""
    return "once" if number == 1 else f"{number:,} times"
