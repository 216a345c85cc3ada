import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.UUID;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What confluent_pipeline.py does, by Apache Kafka's client: ADDRESS NAME GROUP-PROTOCOL. Topics,
 * values and what it prints are the same.
 */
public final class ClientPipeline {
    private static final int PARTITIONS = 4;
    private static volatile boolean isOver = false;

    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private final String life;
    private final Random random = new Random();

    private ClientPipeline(String address, String name, String protocol) {
        life = name + "." + ProcessHandle.current().pid() + "."
            + UUID.randomUUID().toString().substring(0, 4);
        Properties sending = new Properties();
        sending.put("bootstrap.servers", address);
        sending.put("transactional.id", name);
        sending.put("transaction.timeout.ms", "20000");
        sending.put("linger.ms", "1");
        producer = new KafkaProducer<>(sending, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        Properties reading = new Properties();
        reading.put("bootstrap.servers", address);
        reading.put("group.id", "eos");
        reading.put("group.protocol", protocol);
        reading.put("isolation.level", "read_committed");
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("max.poll.records", "60");
        if (protocol.equals("classic")) {
            reading.put("session.timeout.ms", "6000");
        }
        consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
    }

    private void run() {
        consumer.subscribe(List.of("eos-in"));
        for (int number = 0; !isOver; number++) {
            List<ConsumerRecord<String, String>> records = new ArrayList<>();
            consumer.poll(Duration.ofMillis(100)).forEach(records::add);
            if (!records.isEmpty()) {
                transact(life + "." + number, records);
            }
        }
        consumer.close();
        producer.close();
    }

    private void transact(String transaction, List<ConsumerRecord<String, String>> records) {
        try {
            producer.beginTransaction();
            write(transaction, records);
            if (random.nextInt(8) == 0) {
                if (random.nextBoolean()) {
                    producer.flush();
                }
                abort(transaction);
                return;
            }
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (ConsumerRecord<String, String> one : records) {
                offsets.put(
                    new TopicPartition(one.topic(), one.partition()),
                    new OffsetAndMetadata(one.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            commit();
            System.out.println("C " + transaction);
        } catch (ProducerFencedException | InvalidProducerEpochException fault) {
            throw fault;
        } catch (KafkaException fault) {
            System.out.println("# " + transaction + " " + fault);
            abort(transaction);
        }
    }

    /** A time-out says nothing of the end: it is asked for again. */
    private void commit() {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException fault) {
                System.out.println("# again " + fault);
            }
        }
    }

    private void abort(String transaction) {
        while (true) {
            try {
                producer.abortTransaction();
                break;
            } catch (TimeoutException fault) {
                System.out.println("# again " + fault);
            }
        }
        System.out.println("A " + transaction);
        Map<TopicPartition, OffsetAndMetadata> places = consumer.committed(consumer.assignment());
        for (TopicPartition place : consumer.assignment()) {
            OffsetAndMetadata at = places.get(place);
            consumer.seek(place, at == null ? 0 : at.offset());
        }
    }

    private void write(String transaction, List<ConsumerRecord<String, String>> records) {
        Map<Integer, Integer> counts = new HashMap<>();
        Map<Integer, Integer> seen = new HashMap<>();
        records.forEach(one -> counts.merge(one.partition(), 1, Integer::sum));
        for (ConsumerRecord<String, String> one : records) {
            int at = one.partition();
            int index = seen.merge(at, 1, Integer::sum) - 1;
            String value = one.value() + " " + transaction + " " + index + " " + counts.get(at);
            producer.send(new ProducerRecord<>("eos-out", at, one.key(), value));
            producer.send(new ProducerRecord<>("eos-latest", at, one.key(), one.value()));
        }
        String total = transaction + " " + records.size();
        producer.send(new ProducerRecord<>("eos-audit", random.nextInt(PARTITIONS), null, total));
    }

    public static void main(String[] words) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> isOver = true));
        String protocol = words.length > 2 ? words[2] : "classic";
        new ClientPipeline(words[0], words[1], protocol).run();
    }
}
