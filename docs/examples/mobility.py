"""Where trips from each zone go at a time to come: mobility.py URL 2026-11-22T18:00:00Z ZONE..."""

import json
import sys
import urllib.request
from datetime import datetime


def ask(url, path, body):
    """The answer to a request, as Python values."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def main(url, when, *zones):
    # Times are integers in stream.time_unit, ms by default.
    time = int(datetime.fromisoformat(when).timestamp() * 1000)
    wanted = [{"src": f"zone:{zone}", "k": 3, "time": time} for zone in zones]
    for answer in ask(url, "/v1/recommend/batch", {"requests": wanted}):
        print(answer["src"], "->", " ".join(score["dst"] for score in answer["scores"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
