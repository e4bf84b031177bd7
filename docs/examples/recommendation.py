"""What each customer will buy next that is new to them: recommendation.py URL CUSTOMER..."""

import json
import sys
import urllib.request


def ask(url, path, body):
    """The answer to a request, as Python values."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def main(url, *customers):
    # One model version answers all of them; what a customer had lately is left out.
    wanted = [{"src": c, "k": 3, "kind": "sku", "exclude_seen": True} for c in customers]
    for answer in ask(url, "/v1/recommend/batch", {"requests": wanted}):
        best = ", ".join(f"{score['dst']} ({score['score']:.2f})" for score in answer["scores"])
        print(f"{answer['src']}{'' if answer['known'] else ' (new)'}: {best}")


if __name__ == "__main__":
    main(*sys.argv[1:])
