"""The whole of a log in one process under a seed: one leader alone, a leader with a replica, or two or three standbys.

The roles that write and store a log run the product's code, from `run_ingest`, `run_follow` and `run_archive` on. Time, threads, disk,
network and Kafka are simulated. `python -m tests.simulator 20 0` runs seeds 0 to 19, `make simulate` new seeds for an hour. A failing seed
is shrunk: run again with fewer faults and parts of the traffic, as long as it fails alike. Then its last turns and the command that replays
them are printed; `python -m tests.simulator 1 SEED --stop-at TURN` stops at one of them. `python -m tests.simulator.mutations` puts faults
into a copy of the product and measures the time until a seed finds each.

scheduler.py  One thread runs at a time. It yields at each call of a seam (disk, Kafka, sleep, wait, lock), and the seed chooses the next. If
              all threads wait, time jumps to the next timer. So the same seed gives the same run, turn by turn.
seams.py      Modules of streamd get another `time`, `threading` and `uuid`, and `streamd.storage.DISK` another class; clients of kafka-python
              are replaced.
faults.py     A kill at any seam, a torn write, a power cut, a disk that is full, broken or loses writes that it had called durable, a lost
              volume, a lost network or lost answers, a broker outage, an election, a new partition, a jump of the wall clock.
trainer.py    With `--trained 1` a trainer that learns nothing publishes versions and checkpoints, in the terms of the product's.
moves.py      The operator promotes and rolls back on any machine. Each request is done at most once and as asked, no answered move is lost, servers
              never go back, and a champion is complete before they follow it.
learned.py    On one machine moves, windows and versions are lines of its log: each follows the one before, none is there twice, and a move that
              a command called queued is made.
scribe.py     On machines of one log others put numbered lines into the outbox. Whoever leads takes each batch once, if no line came since it
              was written.
operator.py   Members are asked to lead; a third edge set, compactions, backups of running machines and their restore, members that leave and
              join, an empty volume, stray records, topics and a changelog that others trim or create again.
checks.py     At each published commit: its events are exactly those between its positions and the positions of the commit before, each
              once, or dead letters. Times never fall, deletes hide exactly the edges that they name, a published commit never changes.
              After the faults, every machine publishes all events within bounded time, and all directories are equal byte for byte.
shrink.py     Leaves parts of a failing run out.
growth.py     A run without faults at n and at 2 n events: journal, objects, open files, and the cost of an event do not grow.

It cannot find faults of kafka-python, of learning and server, of writes that bypass `streamd.storage.Disk`, or of two threads between two
seams. No disk reorders or misdirects writes or damages synced bytes, the store never fails, others leave the models topic alone. Where a
commit and the compaction of its rows are published at once and a check then fails, the run ends without a result.
"""
