"""The whole of a log in one process under a seed: its roles run their own code, a baton decides who goes on, and broker, disk,
network and clock are simulated. `python -m tests.simulator` runs it; docs/structure.md says what it finds and what it cannot."""
