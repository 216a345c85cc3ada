// Steps of `scripts/secure_clients` with Kafka's own Java clients: a properties file a step, in turn; an outcome a line.
// java -cp JARS SecureJava.java FILE…

import java.io.FileReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.security.token.delegation.DelegationToken;
import org.apache.kafka.common.serialization.*;

public class SecureJava {
  static String of(Properties step, String name) {
    return step.getProperty("step." + name);
  }

  static Properties client(Properties step) {
    Properties settings = new Properties();
    step.forEach((name, value) -> {
      if (!name.toString().startsWith("step.")) settings.put(name, value);
    });
    settings.put("default.api.timeout.ms", "60000");
    settings.put("delivery.timeout.ms", "60000");
    settings.put("request.timeout.ms", "30000");
    return settings;
  }

  static KafkaProducer<String, String> producer(Properties settings) {
    return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
  }

  static String echo(Properties step) throws Exception {
    String topic = of(step, "topic"), text = of(step, "text");
    try (var producer = producer(client(step))) {
      producer.send(new ProducerRecord<>(topic, text)).get();
    }
    try (var consumer = new KafkaConsumer<>(client(step), new StringDeserializer(), new StringDeserializer())) {
      consumer.assign(List.of(new TopicPartition(topic, 0)));
      consumer.seekToBeginning(consumer.assignment());
      for (long end = System.currentTimeMillis() + 60_000; System.currentTimeMillis() < end; )
        for (var found : consumer.poll(Duration.ofSeconds(1))) if (found.value().equals(text)) return "ok";
    }
    return "time-out";
  }

  static String again(Properties step) throws Exception {
    try (var producer = producer(client(step))) {
      long end = System.currentTimeMillis() + 1000 * Long.parseLong(of(step, "seconds"));
      while (System.currentTimeMillis() < end) {
        producer.send(new ProducerRecord<>(of(step, "topic"), of(step, "text"))).get();
        Thread.sleep(100);
      }
    }
    return "ok";
  }

  static String users(Admin admin, String name) throws Exception {
    var info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
    admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(name, info, "secret"))).all().get();
    int seen = admin.describeUserScramCredentials(List.of(name)).all().get().get(name).credentialInfos().size();
    admin.alterUserScramCredentials(List.of(new UserScramCredentialDeletion(name, info.mechanism()))).all().get();
    return "ok " + seen;
  }

  static String acls(Admin admin, String name) throws Exception {
    var acl = new AclBinding(
        new ResourcePattern(ResourceType.TOPIC, name, PatternType.LITERAL),
        new AccessControlEntry("User:zoe", "*", AclOperation.READ, AclPermissionType.ALLOW));
    admin.createAcls(List.of(acl)).all().get();
    int seen = admin.describeAcls(acl.toFilter()).values().get().size();
    return "ok " + seen + " " + admin.deleteAcls(List.of(acl.toFilter())).all().get().size();
  }

  static String quotas(Admin admin, String name) throws Exception {
    var entity = new ClientQuotaEntity(Map.of("user", name));
    for (Double rate : new Double[] {4096.0, null}) {
      var op = new ClientQuotaAlteration.Op("producer_byte_rate", rate);
      admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(op)))).all().get();
      var filter = ClientQuotaFilter.containsOnly(List.of(ClientQuotaFilterComponent.ofEntity("user", name)));
      boolean isThere = rate != null;
      for (long end = System.currentTimeMillis() + 60_000;
          admin.describeClientQuotas(filter).entities().get().containsKey(entity) != isThere; )
        if (System.currentTimeMillis() > end) return "time-out";
    }
    return "ok";
  }

  static String tokens(Admin admin, Properties step) throws Exception {
    DelegationToken made = admin.createDelegationToken().delegationToken().get();
    Properties holder = client(step);
    holder.put("sasl.jaas.config", String.format(
        "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"%s\" password=\"%s\" tokenauth=true;",
        made.tokenInfo().tokenId(), made.hmacAsBase64String()));
    String outcome = "time-out";
    for (long end = System.currentTimeMillis() + 60_000; System.currentTimeMillis() < end && !outcome.equals("ok"); ) {
      try (var producer = producer(holder)) { // told to brokers a moment later
        producer.send(new ProducerRecord<>(of(step, "topic"), of(step, "text"))).get();
        outcome = "ok";
      } catch (ExecutionException fault) {
        outcome = named(fault);
      }
    }
    long seen = admin.describeDelegationToken().delegationTokens().get().stream().filter(made::equals).count();
    admin.renewDelegationToken(made.hmac()).expiryTimestamp().get();
    admin.expireDelegationToken(made.hmac()).expiryTimestamp().get();
    return outcome + " " + seen;
  }

  static String named(Exception fault) {
    Throwable cause = fault instanceof ExecutionException ? fault.getCause() : fault;
    return cause.getClass().getSimpleName() + ": " + cause.getMessage();
  }

  public static void main(String[] files) throws Exception {
    for (String file : files) {
      Properties step = new Properties();
      try (var reader = new FileReader(file)) {
        step.load(reader);
      }
      String outcome, action = of(step, "action");
      try {
        if (action.equals("echo")) outcome = echo(step);
        else if (action.equals("again")) outcome = again(step);
        else
          try (Admin admin = Admin.create(client(step))) {
            outcome = switch (action) {
              case "users" -> users(admin, of(step, "text"));
              case "acls" -> acls(admin, of(step, "text"));
              case "quotas" -> quotas(admin, of(step, "text"));
              case "tokens" -> tokens(admin, step);
              default -> "-";
            };
          }
      } catch (Exception fault) {
        outcome = named(fault);
      }
      System.out.println("outcome " + outcome.replaceAll("\\s+", " "));
    }
    System.exit(0);
  }
}
