package leasehold.interop;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Does with Redisson what the tests tell it to, and says what came of it.
 *
 * <p>Standard input, one request a line, fields separated by tabs: {@code number thread client verb argument…}.
 * Requests of one thread run in order on a Java thread of that name; different threads run side by side.
 * Standard output, one answer a line: {@code number ok|error begun ended text}, where {@code begun} and
 * {@code ended} are {@link System#nanoTime} (on Linux CLOCK_MONOTONIC, the same in every process) around the call,
 * and {@code text} is its result, or the exception's class and message. Ends when its input ends.
 */
public final class Agent {
    private static final PrintStream ANSWERS =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();
    private final Map<String, ExecutorService> threads = new HashMap<>();

    public static void main(String[] args) throws Exception {
        new Agent().serve();
        // A thread may be waiting for a lock for ever.
        Runtime.getRuntime().halt(0);
    }

    private void serve() throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] request = line.split("\t", -1);
            threads.computeIfAbsent(request[1], Agent::thread).execute(() -> answer(request));
        }
    }

    private static ExecutorService thread(String name) {
        return Executors.newSingleThreadExecutor(work -> new Thread(work, name));
    }

    private void answer(String[] request) {
        String verdict = "ok";
        String text;
        long begun = System.nanoTime();
        try {
            text = String.valueOf(perform(request));
        } catch (Throwable problem) {
            verdict = "error";
            text = problem.getClass().getSimpleName() + ": " + problem.getMessage();
        }
        long ended = System.nanoTime();
        synchronized (ANSWERS) {
            ANSWERS.println(request[0] + "\t" + verdict + "\t" + begun + "\t" + ended + "\t"
                    + text.replace('\n', ' ').replace('\t', ' '));
            ANSWERS.flush();
        }
    }

    private Object perform(String[] request) throws Exception {
        String client = request[2];
        String verb = request[3];
        switch (verb) {
            case "connect":
                return connect(client, request[4], Long.parseLong(request[5]));
            case "shutdown":
                clients.remove(client).shutdown();
                return "";
            case "thread-id":
                return Thread.currentThread().getId();
            case "count-up":
                return countUp(clients.get(client), request[4], request[5],
                        Integer.parseInt(request[6]), Integer.parseInt(request[7]));
            default:
                return operate(clients.get(client), verb, request);
        }
    }

    private String connect(String client, String url, long watchdogMs) {
        Config config = new Config();
        config.setLockWatchdogTimeout(watchdogMs);
        // Two event threads instead of one per core and more: this shares a small machine with what it tests.
        config.setThreads(4);
        config.setNettyThreads(2);
        config.useSingleServer()
                .setAddress(url)
                .setConnectionMinimumIdleSize(4)
                .setConnectionPoolSize(16)
                .setSubscriptionConnectionMinimumIdleSize(1);
        RedissonClient connected = Redisson.create(config);
        clients.put(client, connected);
        return connected.getId();
    }

    /** One lock operation; a fresh lock object each time, so that none remembers an earlier lease. */
    private static Object operate(RedissonClient client, String verb, String[] request) throws Exception {
        String name = request[4];
        boolean fenced = verb.startsWith("fenced-");
        RLock lock = fenced ? client.getFencedLock(name) : client.getLock(name);
        switch (fenced ? verb.substring("fenced-".length()) : verb) {
            case "lock":
                lock.lock();
                return "";
            case "lock-lease":
                lock.lock(Long.parseLong(request[5]), TimeUnit.MILLISECONDS);
                return "";
            case "try":
                return lock.tryLock();
            case "try-for":
                return lock.tryLock(Long.parseLong(request[5]), TimeUnit.MILLISECONDS);
            case "try-for-lease":
                return lock.tryLock(Long.parseLong(request[5]), Long.parseLong(request[6]), TimeUnit.MILLISECONDS);
            case "unlock":
                lock.unlock();
                return "";
            case "force-unlock":
                return lock.forceUnlock();
            case "is-locked":
                return lock.isLocked();
            case "is-mine":
                return lock.isHeldByCurrentThread();
            case "hold-count":
                return lock.getHoldCount();
            case "remaining":
                return lock.remainTimeToLive();
            case "lock-token":
                return ((RFencedLock) lock).lockAndGetToken();
            case "try-token-for":
                return ((RFencedLock) lock).tryLockAndGetToken(Long.parseLong(request[5]), TimeUnit.MILLISECONDS);
            case "token":
                return ((RFencedLock) lock).getToken();
            default:
                throw new IllegalArgumentException("no such verb: " + verb);
        }
    }

    /** Each of {@code workers} threads: {@code times} × lock, GET, SET one more, unlock. */
    private static Object countUp(RedissonClient client, String lockName, String counterName, int workers, int times)
            throws Exception {
        AtomicReference<Throwable> problem = new AtomicReference<>();
        CountDownLatch start = new CountDownLatch(1);
        List<Thread> running = new ArrayList<>();
        for (int number = 0; number < workers; number++) {
            Thread worker = new Thread(() -> {
                try {
                    start.await();
                    RLock lock = client.getLock(lockName);
                    RBucket<String> counter = client.getBucket(counterName, StringCodec.INSTANCE);
                    for (int time = 0; time < times; time++) {
                        lock.lock();
                        try {
                            counter.set(String.valueOf(Long.parseLong(counter.get()) + 1));
                        } finally {
                            lock.unlock();
                        }
                    }
                } catch (Throwable thrown) {
                    problem.compareAndSet(null, thrown);
                }
            });
            worker.start();
            running.add(worker);
        }
        start.countDown();
        for (Thread worker : running) {
            worker.join();
        }
        if (problem.get() != null) {
            throw new IllegalStateException("a worker failed", problem.get());
        }
        return workers * times;
    }
}
