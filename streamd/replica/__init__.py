"""The log on other machines, and the model versions and moves that go with it."""
