import java.io.IOException;
import java.io.RandomAccessFile;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** Each line of some files, "files" with commas between, as a record of "topic" with the file's name as its key. */
public final class LineSource extends SourceConnector {
    private Map<String, String> settings;

    @Override
    public void start(Map<String, String> given) {
        settings = given;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return LineTask.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        String[] files = settings.get("files").split(",");
        List<Map<String, String>> configs = new ArrayList<>();
        for (int task = 0; task < Math.min(most, files.length); task++) {
            List<String> own = new ArrayList<>();
            for (int at = task; at < files.length; at += most) {
                own.add(files[at]);
            }
            configs.add(Map.of("files", String.join(",", own), "topic", settings.get("topic")));
        }
        return configs;
    }

    @Override
    public void stop() {
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef();
    }

    @Override
    public String version() {
        return "1";
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> given) {
        return ExactlyOnceSupport.SUPPORTED;
    }

    /** Some of the files. */
    public static final class LineTask extends SourceTask {
        private static final int LINES_MAX = 50;
        private String[] files;
        private String topic;
        private long[] positions;

        @Override
        public void start(Map<String, String> given) {
            files = given.get("files").split(",");
            topic = given.get("topic");
            positions = new long[files.length];
            for (int at = 0; at < files.length; at++) {
                Map<String, Object> offset =
                    context.offsetStorageReader().offset(Map.of("file", files[at]));
                positions[at] = offset == null ? 0 : (Long) offset.get("position");
            }
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            List<SourceRecord> records = new ArrayList<>();
            try {
                for (int at = 0; at < files.length; at++) {
                    read(at, records);
                }
            } catch (IOException fault) {
                throw new RuntimeException(fault);
            }
            if (records.isEmpty()) {
                Thread.sleep(50);
            }
            return records;
        }

        private void read(int at, List<SourceRecord> records) throws IOException {
            try (RandomAccessFile file = new RandomAccessFile(files[at], "r")) {
                long end = file.length();
                file.seek(positions[at]);
                for (int count = 0; count < LINES_MAX && file.getFilePointer() < end; count++) {
                    String line = file.readLine();
                    positions[at] = file.getFilePointer();
                    records.add(
                        new SourceRecord(
                            Map.of("file", files[at]),
                            Map.of("position", positions[at]),
                            topic,
                            Schema.STRING_SCHEMA,
                            files[at],
                            Schema.STRING_SCHEMA,
                            line));
                }
            }
        }

        @Override
        public void stop() {
        }

        @Override
        public String version() {
            return "1";
        }
    }
}
