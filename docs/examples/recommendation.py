"""What each customer will buy next that is new to them: recommendation.py URL CUSTOMER..."""

import sys

from streamd.client import Client, RecommendRequest


def main(url, *customers):
    # One model version answers all of them; what a customer had lately is left out.
    wanted = [RecommendRequest(c, k=3, kind="sku", exclude_seen=True) for c in customers]
    with Client(url) as client:
        for answer in client.recommend_batch(wanted):
            best = ", ".join(f"{found.dst} ({found.score:.2f})" for found in answer.scores)
            print(f"{answer.src}{'' if answer.known else ' (new)'}: {best}")


if __name__ == "__main__":
    main(*sys.argv[1:])
