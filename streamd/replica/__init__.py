"""The log on other machines: a changelog that the leader writes, and followers that read it.

docs/replicas.md is the picture; only `streamd.daemon.run_role` puts the parts together."""
