"""Sends records with aiokafka. Arguments: brokers, topic; standard input: a JSON list of [key, value, headers] in hex, null for none."""

import asyncio
import json
import sys

from aiokafka import AIOKafkaProducer


def raw(text):
    return None if text is None else bytes.fromhex(text)


async def main(brokers, topic):
    producer = AIOKafkaProducer(bootstrap_servers=brokers, compression_type="gzip")
    await producer.start()
    try:
        for key, value, headers in json.load(sys.stdin):
            await producer.send(topic, raw(value), raw(key), headers=[(name, raw(content)) for name, content in headers])
        await producer.flush()
    finally:
        await producer.stop()


asyncio.run(main(*sys.argv[1:]))
