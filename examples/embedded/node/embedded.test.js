// A test in Node against a real broker of its own. Run: npm install && npm test
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { Kafka, logLevel } from "kafkajs";

let broker;
let kafka;

before(async () => {
  broker = spawn("shmbroker", ["embedded", "--print-address"], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const [address] = await once(createInterface({ input: broker.stdout }), "line");
  kafka = new Kafka({ brokers: [address], logLevel: logLevel.ERROR });
});

after(async () => {
  broker.stdin.end(); // the broker ends, and its directory goes
  await once(broker, "exit");
});

test("a record comes back", async () => {
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic: "flights" }] });
  await admin.disconnect();

  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic: "flights", messages: [{ value: "UA 123" }] });
  await producer.disconnect();

  const consumer = kafka.consumer({ groupId: "readers" });
  await consumer.connect();
  await consumer.subscribe({ topic: "flights", fromBeginning: true });
  const value = await new Promise((resolve, reject) => {
    consumer
      .run({ eachMessage: async ({ message }) => resolve(message.value.toString()) })
      .catch(reject);
  });
  await consumer.disconnect();
  assert.equal(value, "UA 123");
});
