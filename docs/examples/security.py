"""Connections that a person should look at: security.py BROKER [SECONDS].

It prints alarms as they come, until none came for SECONDS.
"""

import json
import sys
from datetime import UTC, datetime

from kafka import KafkaConsumer


def main(broker, seconds="inf"):
    patience = {} if seconds == "inf" else {"consumer_timeout_ms": int(1000 * float(seconds))}
    alarms = KafkaConsumer(
        "zeek.alarms", bootstrap_servers=broker, auto_offset_reset="earliest", **patience
    )
    for record in alarms:
        alarm = json.loads(record.value)
        at = datetime.fromtimestamp(alarm["time_us"] / 1e6, UTC)
        # The p-value is the share of events that are as rare.
        text = f"1 in {1 / alarm['source_p_value']:,.0f}, {alarm['reasons'][0]}"
        if alarm["repeats"]:
            text += f", {alarm['repeats']} like it since the last alarm"
        print(f"{at:%Y-%m-%d %H:%M} {alarm['src']} -> {alarm['dst']}: {text}", flush=True)
    alarms.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
