"""Where trips from each zone go at a time to come: mobility.py URL 2026-11-22T18:00:00Z ZONE..."""

import sys
from datetime import datetime

from streamd.client import Client, RecommendRequest


def main(url, when, *zones):
    # Times are integers in stream.time_unit, ms by default.
    time = int(datetime.fromisoformat(when).timestamp() * 1000)
    wanted = [RecommendRequest(f"zone:{zone}", k=3, time=time) for zone in zones]
    with Client(url) as client:
        for answer in client.recommend_batch(wanted):
            print(answer.src, "->", " ".join(str(found.dst) for found in answer.scores))


if __name__ == "__main__":
    main(*sys.argv[1:])
