// A test in Java against a real broker of its own. Run: mvn test

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class EmbeddedTest {
  private static Process broker;
  private static String address;

  @BeforeAll
  static void start() throws Exception {
    broker = new ProcessBuilder("shmbroker", "embedded", "--print-address")
        .redirectError(ProcessBuilder.Redirect.INHERIT)
        .start();
    address = new BufferedReader(new InputStreamReader(broker.getInputStream())).readLine();
  }

  @AfterAll
  static void stop() throws Exception {
    broker.getOutputStream().close(); // the broker ends, and its directory goes
    broker.waitFor();
  }

  @Test
  void recordComesBack() throws Exception {
    Map<String, Object> settings = Map.of(
        "bootstrap.servers", address, "group.id", "readers", "auto.offset.reset", "earliest");
    try (var producer =
        new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
      producer.send(new ProducerRecord<>("flights", "UA 123")).get();
    }
    try (var consumer =
        new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      consumer.subscribe(List.of("flights"));
      for (int turn = 0; turn < 30; turn++) {
        for (var record : consumer.poll(Duration.ofSeconds(1))) {
          assertEquals("UA 123", record.value());
          return;
        }
      }
    }
    throw new AssertionError("nothing came");
  }
}
