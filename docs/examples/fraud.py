"""Payments that a person should look at: fraud.py URL < payments.ndjson, riskiest card first."""

import json
import sys
import urllib.request


def ask(url, path, body):
    """The answer to a request, as Python values."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def main(url):
    payments = [json.loads(line) for line in sys.stdin]
    cards = sorted({f"card:{p['card']}" for p in payments})
    merchants = sorted({f"merchant:{p['merchant']}" for p in payments})

    # The probability that a card is reported, and the place of a merchant among all for that card.
    told = ask(url, "/v1/labels", {"nodes": cards})
    risk = {label["node"]: label["labels"][0] for label in told}
    for payment in sorted(payments, key=lambda p: -risk[f"card:{p['card']}"]):
        card, merchant = f"card:{payment['card']}", f"merchant:{payment['merchant']}"
        scores = ask(url, "/v1/score", {"src": card, "dst": merchants})["scores"]
        place = [s["dst"] for s in sorted(scores, key=lambda s: -s["score"])].index(merchant)
        unusual = place > len(merchants) // 2
        if risk[card] > 0.5 or unusual:
            remark = ", an unusual merchant" if unusual else ""
            print(f"{card} at {merchant}: {risk[card]:.2f}{remark}")


if __name__ == "__main__":
    main(*sys.argv[1:])
