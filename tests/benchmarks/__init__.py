"""`make bench`: what streamd reaches on this machine, each figure beside a peer or a limit taken in the same run."""
