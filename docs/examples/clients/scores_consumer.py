"""Prints the events with a bad rank: `scores_consumer.py BROKER TOPIC`."""

import json
import sys

from kafka import KafkaConsumer

broker, topic = sys.argv[1:3]
consumer = KafkaConsumer(topic, bootstrap_servers=broker, auto_offset_reset="earliest",
                         consumer_timeout_ms=2000)
seen = set()
for record in consumer:
    score = json.loads(record.value)
    if score["schema"] != 1:
        raise SystemExit("made by a newer streamd")
    if score["event"] in seen:
        continue  # at least once: after a restart some come again
    seen.add(score["event"])
    if score["rank"] > 50:
        print(f"odd: {score['src']} -> {score['dst']} ranks {score['rank']:g} of {score['candidates'] + 1}")
print(f"{len(seen)} scores")
