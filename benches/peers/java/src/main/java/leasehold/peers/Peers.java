package leasehold.peers;

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLongArray;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Puts Redisson's locks under one load; src/load.rs of the benchmark describes input and output. */
public final class Peers {
    private static final long HOLD_MS = 3;
    private static final long PAUSE_MS = 2;
    private static final int PERMITS = 4;
    private static final long WRITES_EVERY = 10;
    private static final double STEP = Math.log(1.02);

    private final Map<String, String> told = new HashMap<>();
    private final int threads;
    private final int keys;
    private final double seconds;
    private final double warmup;
    private final String name;
    private final BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    private final RedissonClient client;
    private final AtomicLongArray numbers;
    private final FileChannel counter;

    private long cpuNs;
    private String more = "";

    /** One thread's counts. */
    private static final class Tally {
        long cycles;
        long acquired;
        long entered;
        long errors;
        long longest;
        String error;
        final TreeMap<Integer, Long> steps = new TreeMap<>();
        final List<long[]> events = new ArrayList<>();

        Tally after(Tally warm) {
            entered = warm.entered;
            errors = warm.errors;
            error = warm.error;
            return this;
        }

        void waited(long ns) {
            steps.merge((int) (Math.log(Math.max(ns, 1)) / STEP), 1L, Long::sum);
            longest = Math.max(longest, ns);
        }

        boolean failed(Exception problem) {
            errors++;
            if (error == null) {
                error = problem.toString();
            }
            return errors < 100;
        }
    }

    /** What one thread locks and unlocks. */
    private interface Session {
        void lock() throws InterruptedException;

        void unlock();

        /** Whether the session's locks exclude other owners. */
        default boolean isAlone() {
            return true;
        }
    }

    private Peers(String[] arguments) throws IOException {
        for (int at = 0; at + 1 < arguments.length; at += 2) {
            told.put(arguments[at], arguments[at + 1]);
        }
        threads = Integer.parseInt(told.get("--threads"));
        keys = Integer.parseInt(told.get("--keys"));
        seconds = Double.parseDouble(told.get("--seconds"));
        warmup = Double.parseDouble(told.get("--warmup"));
        name = told.get("--name");
        numbers = new AtomicLongArray(keys);
        String file = told.get("--counter");
        counter = file == null
                ? null
                : FileChannel.open(Path.of(file), StandardOpenOption.READ, StandardOpenOption.WRITE);
        client = connect();
    }

    private RedissonClient connect() {
        Config config = new Config();
        config.useSingleServer().setAddress(told.get("--url"));
        return Redisson.create(config);
    }

    public static void main(String[] arguments) throws Exception {
        Peers peers = new Peers(arguments);
        switch (peers.told.get("--kind")) {
            case "cycles" -> peers.write(peers.cycles());
            case "handoff" -> peers.write(peers.handoff());
            case "held" -> peers.write(peers.held());
            case "holder" -> peers.write(peers.holder());
            case "waiters" -> peers.write(peers.waiters(false));
            case "crowd" -> peers.write(peers.waiters(true));
            default -> throw new IllegalArgumentException(peers.told.get("--kind"));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private void expect(String word) throws IOException {
        String line = input.readLine();
        if (!word.equals(line)) {
            throw new IOException("told " + line + " instead of " + word);
        }
    }

    private static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private RLock lock(int key) {
        return client.getLock(name + ":" + key);
    }

    private Session session(int key) {
        return switch (told.getOrDefault("--sort", "plain")) {
            case "permits" -> permits(key);
            case "read-write" -> readWrite(key);
            default -> plain(key);
        };
    }

    private Session plain(int key) {
        RLock lock = lock(key);
        return new Session() {
            @Override
            public void lock() {
                lock.lock();
            }

            @Override
            public void unlock() {
                lock.unlock();
            }
        };
    }

    private Session permits(int key) {
        RSemaphore semaphore = client.getSemaphore(name + ":" + key);
        semaphore.trySetPermits(PERMITS);
        return new Session() {
            @Override
            public void lock() throws InterruptedException {
                semaphore.acquire();
            }

            @Override
            public void unlock() {
                semaphore.release();
            }

            @Override
            public boolean isAlone() {
                return false;
            }
        };
    }

    private Session readWrite(int key) {
        RReadWriteLock lock = client.getReadWriteLock(name + ":" + key);
        return new Session() {
            private long cycles;

            @Override
            public void lock() {
                cycles++;
                half().lock();
            }

            @Override
            public void unlock() {
                half().unlock();
            }

            @Override
            public boolean isAlone() {
                return cycles % WRITES_EVERY == 0;
            }

            private RLock half() {
                return isAlone() ? lock.writeLock() : lock.readLock();
            }
        };
    }

    /** The critical section: reads numbers and then writes them. */
    private void enter(int key) throws IOException {
        if (counter != null) {
            ByteBuffer bytes = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
            counter.read(bytes, 0);
            bytes.putLong(0, bytes.getLong(0) + 1);
            bytes.rewind();
            counter.write(bytes, 0);
        }
        // Two separate accesses, so that simultaneous holders lose an update.
        numbers.set(key, numbers.get(key) + 1);
    }

    private void spin(Session lock, int key, long end, Tally tally) {
        while (true) {
            long asked = System.nanoTime();
            if (asked >= end) {
                return;
            }
            try {
                lock.lock();
                long got = System.nanoTime();
                tally.waited(got - asked);
                tally.acquired++;
                if (got < end) {
                    tally.cycles++;
                }
                if (lock.isAlone()) {
                    tally.entered++;
                    enter(key);
                }
                lock.unlock();
            } catch (Exception problem) {
                if (!tally.failed(problem)) {
                    return;
                }
            }
        }
    }

    private static long ns(double seconds) {
        return (long) (seconds * 1e9);
    }

    private Tally[] cycles() throws Exception {
        Tally[] tallies = new Tally[threads];
        CountDownLatch warm = new CountDownLatch(threads);
        CountDownLatch go = new CountDownLatch(1);
        long[] begun = new long[1];
        Thread[] running = new Thread[threads];
        for (int number = 0; number < threads; number++) {
            int mine = number;
            running[number] = new Thread(() -> {
                int key = mine % keys;
                Session lock = session(key);
                Tally before = new Tally();
                spin(lock, key, System.nanoTime() + ns(warmup), before);
                tallies[mine] = new Tally().after(before);
                warm.countDown();
                try {
                    go.await();
                } catch (InterruptedException stopped) {
                    return;
                }
                spin(lock, key, begun[0] + ns(seconds), tallies[mine]);
            });
            running[number].start();
        }
        warm.await();
        say("ready");
        expect("go");
        long used = cpu();
        begun[0] = System.nanoTime();
        go.countDown();
        for (Thread thread : running) {
            thread.join();
        }
        cpuNs = cpu() - used;
        return tallies;
    }

    private Tally[] handoff() throws Exception {
        RLock lock = lock(0);
        Tally before = new Tally();
        spin(plain(0), 0, System.nanoTime() + ns(warmup), before);
        Tally tally = new Tally().after(before);
        say("ready");
        expect("go");
        long used = cpu();
        long end = System.nanoTime() + ns(seconds);
        while (System.nanoTime() < end) {
            // On Linux nanoTime is CLOCK_MONOTONIC, which all processes share.
            long asked = System.nanoTime();
            lock.lock();
            long got = System.nanoTime();
            enter(0);
            Thread.sleep(HOLD_MS);
            long leaving = System.nanoTime();
            lock.unlock();
            tally.events.add(new long[] {asked, got, leaving});
            tally.waited(got - asked);
            tally.cycles++;
            tally.acquired++;
            tally.entered++;
            Thread.sleep(PAUSE_MS);
        }
        cpuNs = cpu() - used;
        return new Tally[] {tally};
    }

    private Tally[] held() throws Exception {
        say("ready");
        expect("go");
        long begun = System.nanoTime();
        for (int key = 0; key < keys; key++) {
            lock(key).lock();
        }
        double fill = (System.nanoTime() - begun) / 1e9;
        long used = cpu();
        begun = System.nanoTime();
        say("holding");
        expect("check");
        cpuNs = cpu() - used;
        double held = (System.nanoTime() - begun) / 1e9;
        Tally tally = new Tally();
        long lost = 0;
        for (int key = 0; key < keys; key++) {
            try {
                if (!lock(key).isHeldByCurrentThread()) {
                    lost++;
                }
                lock(key).unlock();
            } catch (Exception problem) {
                lost++;
                tally.failed(problem);
            }
        }
        more = ",\"lost\":" + lost + ",\"fill_s\":" + fill + ",\"seconds\":" + held;
        return new Tally[] {tally};
    }

    private Tally[] holder() throws Exception {
        lock(0).lock();
        say("ready");
        expect("release");
        more = ",\"seconds\":" + seconds + ",\"at_ns\":" + System.nanoTime();
        lock(0).unlock();
        return new Tally[0];
    }

    /** Threads of one client, or, as a crowd, with a client each, as if they were processes. */
    private Tally[] waiters(boolean ownClients) throws Exception {
        Tally[] tallies = new Tally[threads];
        CountDownLatch parked = new CountDownLatch(threads);
        CountDownLatch go = new CountDownLatch(1);
        CountDownLatch asking = new CountDownLatch(threads);
        CountDownLatch done = new CountDownLatch(threads);
        for (int number = 0; number < threads; number++) {
            Tally tally = tallies[number] = new Tally();
            RedissonClient mine = ownClients ? connect() : client;
            new Thread(() -> {
                try {
                    parked.countDown();
                    go.await();
                    asking.countDown();
                    RLock lock = mine.getLock(name + ":0");
                    lock.lock();
                    enter(0);
                    tally.acquired++;
                    tally.entered++;
                    lock.unlock();
                } catch (Exception problem) {
                    tally.failed(problem);
                }
                done.countDown();
            }).start();
        }
        parked.await();
        say("ready");
        expect("go");
        long used = cpu();
        go.countDown();
        asking.await();
        say("waiting");
        done.await();
        more = ",\"seconds\":" + seconds + ",\"at_ns\":" + System.nanoTime();
        if (ownClients) {
            say("served");
        }
        cpuNs = cpu() - used;
        return tallies;
    }

    private void write(Tally[] tallies) {
        Tally all = new Tally();
        List<String> cycles = new ArrayList<>();
        for (Tally tally : tallies) {
            cycles.add(Long.toString(tally.cycles));
            all.acquired += tally.acquired;
            all.entered += tally.entered;
            all.errors += tally.errors;
            all.longest = Math.max(all.longest, tally.longest);
            all.events.addAll(tally.events);
            tally.steps.forEach((step, count) -> all.steps.merge(step, count, Long::sum));
            if (all.error == null) {
                all.error = tally.error;
            }
        }
        long counted = 0;
        for (int key = 0; key < keys; key++) {
            counted += numbers.get(key);
        }
        List<String> steps = new ArrayList<>();
        all.steps.forEach((step, count) -> steps.add("\"" + step + "\":" + count));
        List<String> events = new ArrayList<>();
        for (long[] event : all.events) {
            events.add("[" + event[0] + "," + event[1] + "," + event[2] + "]");
        }
        String version = Redisson.class.getPackage().getImplementationVersion();
        String error = all.error == null ? "null" : "\"" + all.error.replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\"";
        say("{\"version\":\"" + (version == null ? "" : version) + "\""
                + ",\"cycles\":[" + String.join(",", cycles) + "]"
                + ",\"acquired\":" + all.acquired
                + ",\"entered\":" + all.entered
                + ",\"violations\":" + (all.entered - counted)
                + ",\"errors\":" + all.errors
                + ",\"error\":" + error
                + ",\"waits\":{\"steps\":{" + String.join(",", steps) + "},\"max_ns\":" + all.longest + "}"
                + ",\"cpu_s\":" + cpuNs / 1e9
                + ",\"events\":[" + String.join(",", events) + "]"
                + (more.isEmpty() ? ",\"seconds\":" + seconds : more) + "}");
    }
}
