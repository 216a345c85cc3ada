// Steps of `scripts/secure_clients` with kafkajs: reads a JSON list of them, prints an outcome a line.
const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

function client(step) {
  const settings = { brokers: [step.address], logLevel: logLevel.NOTHING, retry: { retries: 3 } };
  settings.reauthenticationThreshold = 500;
  settings.authenticationTimeout = settings.connectionTimeout = 20000;
  if (step.protocol.endsWith("SSL")) {
    settings.ssl = { ca: [fs.readFileSync(step.ca, "utf-8")] };
    if (step.certificate) {
      settings.ssl.cert = fs.readFileSync(step.certificate, "utf-8");
      settings.ssl.key = fs.readFileSync(step.key, "utf-8");
    }
  }
  if (step.mechanism === "OAUTHBEARER") {
    const oauthBearerProvider = async () => ({ value: step.token });
    settings.sasl = { mechanism: "oauthbearer", oauthBearerProvider };
  } else if (step.mechanism) {
    const mechanism = step.mechanism.toLowerCase();
    settings.sasl = { mechanism, username: step.user, password: step.password };
  }
  return new Kafka(settings);
}

const steps = {
  async echo(kafka, step) {
    const producer = kafka.producer();
    await producer.connect();
    await producer.send({ topic: step.topic, messages: [{ value: step.text }] });
    await producer.disconnect();
    const consumer = kafka.consumer({ groupId: `group-${step.text}` });
    await consumer.connect();
    await consumer.subscribe({ topic: step.topic, fromBeginning: true });
    await new Promise((done, fail) => {
      consumer.on(consumer.events.CRASH, (event) => fail(event.payload.error));
      const eachMessage = async ({ message }) => message.value.toString() === step.text && done();
      consumer.run({ eachMessage }).catch(fail);
    });
    await consumer.disconnect();
  },
  async again(kafka, step) {
    const producer = kafka.producer();
    await producer.connect();
    const end = Date.now() + step.seconds * 1000;
    while (Date.now() < end) {
      await producer.send({ topic: step.topic, messages: [{ value: step.text }] });
      await new Promise((done) => setTimeout(done, 100));
    }
    await producer.disconnect();
  },
  async acls(kafka, step) {
    const admin = kafka.admin();
    await admin.connect();
    const acl = { resourceType: 2, resourceName: step.text, resourcePatternType: 3 };
    Object.assign(acl, { principal: "User:zoe", host: "*", operation: 3, permissionType: 3 });
    await admin.createAcls({ acl: [acl] });
    const { resources } = await admin.describeAcls(acl);
    const { filterResponses } = await admin.deleteAcls({ filters: [acl] });
    await admin.disconnect();
    return `ok ${resources.length} ${filterResponses[0].matchingAcls.length}`;
  },
};

async function main() {
  for (const step of JSON.parse(fs.readFileSync(0, "utf-8"))) {
    let outcome;
    const late = new Promise((_, fail) => setTimeout(() => fail(new Error("time-out")), 60000).unref());
    try {
      const asked = steps[step.action];
      outcome = asked ? (await Promise.race([asked(client(step), step), late])) || "ok" : "-";
    } catch (fault) {
      const cause = fault.cause || fault;
      outcome = `${cause.name}: ${cause.type || cause.message}`;
    }
    console.log(outcome.replace(/\s+/g, " "));
  }
  process.exit(0);
}

main();
