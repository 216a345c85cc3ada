// The transactional flow of kafkajs: node kafkajs.js ADDRESS TOPIC. Prints what `scripts/transactional_clients` expects.
const { Kafka, logLevel } = require("kafkajs");

const [address, topic] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [address], logLevel: logLevel.NOTHING });

async function begin(id) {
  const producer = kafka.producer({ transactionalId: id, maxInFlightRequests: 1, idempotent: true });
  await producer.connect();
  return producer;
}

async function write(transaction, label) {
  for (let number = 0; number < 6; number++) {
    const messages = [{ partition: number % 2, value: `${label}-${number}` }];
    await transaction.send({ topic, messages });
  }
}

async function main() {
  const producer = await begin(`${topic}-id`);
  const committed = await producer.transaction();
  await write(committed, "committed");
  await committed.commit();
  const aborted = await producer.transaction();
  await write(aborted, "aborted");
  await aborted.abort();
  const withOffsets = await producer.transaction();
  await write(withOffsets, "offsets");
  const partitions = [{ partition: 0, offset: "5" }];
  await withOffsets.sendOffsets({ consumerGroupId: `${topic}-group`, topics: [{ topic, partitions }] });
  await withOffsets.commit();
  const admin = kafka.admin();
  await admin.connect();
  const [{ partitions: found }] = await admin.fetchOffsets({ groupId: `${topic}-group`, topics: [topic] });
  console.log("offset", found.find((row) => row.partition === 0).offset);
  await admin.disconnect();
  const successor = await begin(`${topic}-id`);
  const last = await successor.transaction();
  await write(last, "successor");
  await last.commit();
  try {
    const zombie = await producer.transaction();
    await write(zombie, "zombie");
    await zombie.commit();
    console.log("zombie committed");
  } catch (fault) {
    console.log("zombie", fault.type || fault.name);
  }
  await successor.disconnect();
  await producer.disconnect();
  for (const readUncommitted of [false, true]) {
    const name = readUncommitted ? "all" : "stable";
    const consumer = kafka.consumer({ groupId: `${topic}-${name}`, readUncommitted });
    await consumer.connect();
    await consumer.subscribe({ topic, fromBeginning: true });
    const values = [];
    await consumer.run({ eachMessage: async ({ message }) => values.push(message.value.toString()) });
    // the successor's are the last of each partition
    while (values.filter((value) => value.startsWith("successor")).length < 6) {
      await new Promise((done) => setTimeout(done, 50));
    }
    await consumer.disconnect();
    console.log(name, values.sort().join(" "));
  }
}

main().catch((fault) => {
  console.log("failed", fault);
  process.exit(1);
});
