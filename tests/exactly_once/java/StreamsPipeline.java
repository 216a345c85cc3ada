import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams with exactly_once_v2: ADDRESS NAME DIRECTORY. Three ways from eos-in:
 *
 * <ul>
 *   <li>eos-out: each record as it is;
 *   <li>eos-sums: for each record "COUNT VALUE", how many of its key there were, by a state store
 *       and its changelog;
 *   <li>eos-buckets: for each record "COUNT", how many of its bucket (its key's number modulo 7)
 *       there were, through a repartition topic.
 * </ul>
 */
public final class StreamsPipeline {
    public static void main(String[] words) throws InterruptedException {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("application.id", "eos");
        settings.put("client.id", words[1]);
        settings.put("state.dir", words[2]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("replication.factor", "-1");
        settings.put("commit.interval.ms", "100");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("num.standby.replicas", "1");
        settings.put("consumer.session.timeout.ms", "6000");
        settings.put("producer.transaction.timeout.ms", "20000");
        settings.put("consumer.auto.offset.reset", "earliest");
        KafkaStreams streams = new KafkaStreams(topology(), settings);
        streams.setUncaughtExceptionHandler(fault -> {
            System.out.println("# " + fault);
            fault.printStackTrace(System.out);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        Runtime.getRuntime().addShutdownHook(
            new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        Thread.currentThread().join();
    }

    private static org.apache.kafka.streams.Topology topology() {
        StreamsBuilder builder = new StreamsBuilder();
        var text = Serdes.String();
        var whole = Serdes.Long();
        KStream<String, String> in = builder.stream("eos-in", Consumed.with(text, text));
        in.to("eos-out", Produced.with(text, text));
        in.groupByKey(Grouped.with(text, text))
            .aggregate(
                () -> "0 -",
                (key, value, sum) -> (Long.parseLong(sum.split(" ")[0]) + 1) + " " + value,
                Materialized.with(text, text))
            .toStream()
            .to("eos-sums", Produced.with(text, text));
        in.groupBy(
                (key, value) -> "b" + Integer.parseInt(key.substring(1)) % 7,
                Grouped.with("buckets", text, text))
            .count(Materialized.with(text, whole))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to("eos-buckets", Produced.with(text, text));
        return builder.build();
    }
}
