"""Numbers with their nouns, and durations, as people read them."""


def count_noun(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun, as "1 window" or "1,200 windows". plural: if not formed by an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def times(number: int) -> str:
    """How often something happened: "once", or "0 times"."""
    return "once" if number == 1 else f"{number:,} times"


def span(seconds: float) -> str:
    """A duration as "200 ms", "12 s", "3 min", "2 h 5 min" or "3 d 2 h"."""
    if 0 < seconds < 0.95:
        return f"{max(1, round(1000 * seconds))} ms"
    if abs(seconds) < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours = round(seconds / 3600)
    if hours < 48:
        return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
    return f"{hours // 24:,} d" + (f" {hours % 24} h" if hours % 24 else "")
