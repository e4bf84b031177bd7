"""Payments that a person should look at: fraud.py URL < payments.ndjson, riskiest card first."""

import json
import sys

from streamd.client import Client


def main(url):
    payments = [json.loads(line) for line in sys.stdin]
    cards = sorted({f"card:{p['card']}" for p in payments})
    merchants = sorted({f"merchant:{p['merchant']}" for p in payments})
    with Client(url) as client:
        # The probability that a card is reported.
        risk = {told.node: told.labels[0] for told in client.labels_of(cards)}
        for payment in sorted(payments, key=lambda p: -risk[f"card:{p['card']}"]):
            card, merchant = f"card:{payment['card']}", f"merchant:{payment['merchant']}"

            # The place of this merchant among all for that card.
            scores = client.score(card, merchants).scores
            place = [s.dst for s in sorted(scores, key=lambda s: -s.score)].index(merchant)
            unusual = place > len(merchants) // 2
            if risk[card] > 0.5 or unusual:
                remark = ", an unusual merchant" if unusual else ""
                print(f"{card} at {merchant}: {risk[card]:.2f}{remark}")


if __name__ == "__main__":
    main(*sys.argv[1:])
