import static java.util.stream.Collectors.joining;

import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Services behind Watermaster, for scripts/pictures: each works off the records of a topic, one at a time, at the same
 * rate, and commits every second. A service becomes slower the more work waits, as if its database ran out of memory
 * (tests/broker/pace.rs has the same one).
 *
 * <p>java Worker.java BOOTSTRAP PORT RATE TOPIC... : on PORT, /metrics is for Prometheus, and /rate/200 sets the rate.
 */
public class Worker {
    /** The work in seconds from which on a service becomes slower, the part lost for each second more, the least part. */
    static final double KNEE = 4, SLOPE = 0.08, LEAST = 0.5;
    /** The times in seconds in which a service becomes slower, and recovers. */
    static final double SLOWS = 2, RECOVERS = 10;

    /** Records per second of a service that is not slowed down. */
    static volatile double rate;

    final String topic;
    final KafkaConsumer<byte[], byte[]> consumer;
    double part = 1;
    double next = seconds();
    /** When the newest finished record of each partition came, or nothing was left to do, in milliseconds since 1970. */
    final Map<TopicPartition, Long> doneUntil = new HashMap<>();
    volatile long finished;
    volatile double waiting, lag;

    Worker(String bootstrap, String topic) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", topic + ".workers");
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "20");
        this.topic = topic;
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic));
    }

    static double seconds() {
        return System.nanoTime() / 1e9;
    }

    void work() {
        double commitAt = seconds() + 1;
        while (true) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                // The worker makes up for the delays of a busy machine, half a second at most.
                next = Math.max(next, seconds() - 0.5) + 1 / (rate * part);
                sleepUntil(next);
                finished++;
                doneUntil.put(new TopicPartition(topic, record.partition()), record.timestamp());
            }
            if (seconds() >= commitAt) {
                commitAt += 1;
                consumer.commitAsync();
                look();
            }
        }
    }

    /** Counts waiting records, measures the lag of the latest partition, and slows down or recovers by a second. */
    void look() {
        double passed = 0, open = 0, most = 0;
        for (var end : consumer.endOffsets(consumer.assignment()).entrySet()) {
            long position = consumer.position(end.getKey());
            passed += position;
            open += end.getValue() - position;
            long now = System.currentTimeMillis();
            if (end.getValue() <= position) doneUntil.put(end.getKey(), now);
            most = Math.max(most, now - doneUntil.getOrDefault(end.getKey(), now));
        }
        lag = most / 1e3;
        // Markers of transactions are no work.
        waiting = open * finished / Math.max(1, passed);
        double wanted = Math.min(1, Math.max(LEAST, 1 - SLOPE * (waiting / rate - KNEE)));
        part += (wanted - part) / (wanted < part ? SLOWS : RECOVERS);
    }

    static void sleepUntil(double time) {
        long nanos = (long) ((time - seconds()) * 1e9);
        try {
            if (nanos > 0) Thread.sleep(nanos / 1_000_000, (int) (nanos % 1_000_000));
        } catch (InterruptedException stop) {
            throw new IllegalStateException(stop);
        }
    }

    String metrics() {
        String of = "{topic=\"" + topic + "\"} ";
        return "worker_rate" + of + rate + "\nworker_finished_total" + of + finished + "\nworker_waiting_records" + of + waiting
                + "\nworker_lag_seconds" + of + lag + "\n";
    }

    public static void main(String[] arguments) throws Exception {
        rate = Double.parseDouble(arguments[2]);
        List<Worker> workers = Arrays.stream(arguments).skip(3).map(topic -> new Worker(arguments[0], topic)).toList();
        workers.forEach(worker -> new Thread(worker::work).start());
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[1])), 0);
        server.createContext("/", exchange -> {
            String path = exchange.getRequestURI().getPath();
            if (path.startsWith("/rate/")) rate = Double.parseDouble(path.substring("/rate/".length()));
            byte[] body = workers.stream().map(Worker::metrics).collect(joining()).getBytes();
            exchange.getResponseHeaders().set("Content-Type", "text/plain; version=0.0.4");
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }
}
