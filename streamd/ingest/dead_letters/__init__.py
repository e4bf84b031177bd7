"""Dead letters: refused events, stored with the reason, which an operator can replay."""
