// Sends records with kafkajs. Arguments: the package's folder, brokers, topic; standard input: as send_aiokafka.py.
const [folder, brokers, topic] = process.argv.slice(2);
const { Kafka, CompressionTypes, logLevel } = require(folder);
const raw = text => text === null ? null : Buffer.from(text, "hex");
const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
(async () => {
  const producer = new Kafka({ brokers: brokers.split(","), logLevel: logLevel.ERROR }).producer();
  await producer.connect();
  const messages = given.map(([key, value, headers]) => ({ key: raw(key), value: raw(value),
    headers: Object.fromEntries(headers.map(([name, content]) => [name, raw(content)])) }));
  await producer.send({ topic, messages, compression: CompressionTypes.GZIP });
  await producer.disconnect();
})().catch(error => { console.error(error); process.exit(1); });
