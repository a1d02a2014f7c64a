package leasehold.interop;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.redisson.Redisson;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.RBucket;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.redisson.config.ShardedSubscriptionMode;

/**
 * Carries out the tests' requests with Redisson, and reports the results.
 *
 * <p>Standard input, one request a line, fields separated by tabs: {@code number thread client verb argument…}.
 * Requests of one thread run in order on a Java thread of that name; different threads run side by side.
 * Standard output, one answer a line: {@code number ok|error begun ended text}, where {@code begun} and
 * {@code ended} are {@link System#nanoTime} (on Linux CLOCK_MONOTONIC, the same in every process) around the call,
 * and {@code text} is its result, or the exception's class and message. The program ends with its input.
 */
public final class Agent {
    private static final PrintStream ANSWERS =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    /** The prefixes of verbs for other kinds than a plain lock. */
    private static final List<String> KINDS =
            List.of("fenced-", "fair-", "spin-", "read-", "write-", "multi-", "semaphore-", "permits-", "latch-");

    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();
    private final Map<String, ExecutorService> threads = new HashMap<>();

    public static void main(String[] args) throws Exception {
        new Agent().serve();
        // A thread that waits for a lock for ever would keep the JVM alive.
        Runtime.getRuntime().halt(0);
    }

    private void serve() throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] request = line.split("\t", -1);
            if (request[3].equals("reset")) {
                answer(request);
                continue;
            }
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
        if (verb.startsWith("redlock-")) {
            // request[4] names several clients, joined by commas. Each client has one of the Redlock's locks.
            RLock[] members = Arrays.stream(request[4].split(","))
                    .map(member -> clients.get(member).getLock(request[5]))
                    .toArray(RLock[]::new);
            RLock lock = new RedissonRedLock(members);
            switch (verb.substring("redlock-".length())) {
                case "try-for-lease":
                    return lock.tryLock(
                            Long.parseLong(request[6]), Long.parseLong(request[7]), TimeUnit.MILLISECONDS);
                case "unlock":
                    lock.unlock();
                    return "";
                default:
                    throw new IllegalArgumentException("no such verb: " + verb);
            }
        }
        switch (verb) {
            case "connect":
                return connect(client, request[4], Long.parseLong(request[5]), word(request, 6), word(request, 7),
                        word(request, 8));
            case "shutdown":
                clients.remove(client).shutdown();
                return "";
            case "reset":
                // The next test reuses this JVM. All threads are idle, since each request has been answered.
                clients.values().forEach(each -> each.shutdown(0, 2, TimeUnit.SECONDS));
                clients.clear();
                threads.values().forEach(ExecutorService::shutdown);
                threads.clear();
                return "";
            case "asleep":
                return asleep(List.of(request[4].split(",")));
            case "thread-id":
                return Thread.currentThread().getId();
            case "count-up":
                return countUp(clients.get(client), request[4], request[5],
                        Integer.parseInt(request[6]), Integer.parseInt(request[7]));
            case "work":
                return work(clients.get(client), request[4], request[5], Integer.parseInt(request[6]),
                        Long.parseLong(request[7]), Long.parseLong(request[8]));
            default:
                return operate(clients.get(client), verb, request);
        }
    }

    /** How many of these threads sleep as Redisson's waiters do, in the semaphore that a message releases. */
    private static long asleep(List<String> names) {
        return Thread.getAllStackTraces().entrySet().stream()
                .filter(each -> names.contains(each.getKey().getName()))
                .map(Map.Entry::getValue)
                .filter(stack -> stack.length > 0 && stack[0].getMethodName().equals("park"))
                .filter(stack -> Arrays.stream(stack)
                        .anyMatch(frame -> frame.getClassName().equals("java.util.concurrent.Semaphore")))
                .count();
    }

    /** The request's field at {@code place}; null if it is missing or empty. */
    private static String word(String[] request, int place) {
        return request.length > place && !request[place].isEmpty() ? request[place] : null;
    }

    /**
     * With {@code shardedMode}, the URL is that of a cluster's member; with {@code master}, the URLs, joined by commas,
     * are those of Sentinels. {@code fairWaitMs} is Redisson's {@code fairLockWaitTimeout}.
     */
    private String connect(
            String client, String url, long watchdogMs, String shardedMode, String master, String fairWaitMs) {
        Config config = new Config();
        config.setLockWatchdogTimeout(watchdogMs);
        if (fairWaitMs != null) {
            config.setFairLockWaitTimeout(Long.parseLong(fairWaitMs));
        }
        // Few threads, because this program shares a small machine with the server and with the other
        // clients.
        config.setThreads(4);
        config.setNettyThreads(2);
        if (master != null) {
            config.useSentinelServers()
                    .addSentinelAddress(url.split(","))
                    .setMasterName(master)
                    .setMasterConnectionMinimumIdleSize(2)
                    .setMasterConnectionPoolSize(8)
                    .setSlaveConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionMinimumIdleSize(1);
        } else if (shardedMode != null) {
            config.useClusterServers()
                    .addNodeAddress(url)
                    .setShardedSubscriptionMode(ShardedSubscriptionMode.valueOf(shardedMode))
                    .setMasterConnectionMinimumIdleSize(2)
                    .setMasterConnectionPoolSize(8)
                    .setSlaveConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionMinimumIdleSize(1);
        } else {
            config.useSingleServer()
                    .setAddress(url)
                    .setConnectionMinimumIdleSize(4)
                    .setConnectionPoolSize(16)
                    .setSubscriptionConnectionMinimumIdleSize(1);
        }
        RedissonClient connected = Redisson.create(config);
        clients.put(client, connected);
        return connected.getId();
    }

    /** Several locks, named in one argument and joined by commas. The prefix {@code fenced:} makes a fenced lock. */
    private static RLock multi(RedissonClient client, String names) {
        return new RedissonMultiLock(Arrays.stream(names.split(","))
                .map(name -> name.startsWith("fenced:")
                        ? client.getFencedLock(name.substring("fenced:".length()))
                        : client.getLock(name))
                .toArray(RLock[]::new));
    }

    /** One lock operation; a fresh lock object each time, so that none remembers an earlier lease. */
    private static Object operate(RedissonClient client, String verb, String[] request) throws Exception {
        String name = request[4];
        String kind = KINDS.stream().filter(prefix -> verb.startsWith(prefix)).findFirst().orElse("");
        switch (kind) {
            case "semaphore-":
                return semaphore(client.getSemaphore(name), verb, request);
            case "permits-":
                return permits(client.getPermitExpirableSemaphore(name), verb, request);
            case "latch-":
                return latch(client.getCountDownLatch(name), verb, request);
            default:
                break;
        }
        RLock lock = switch (kind) {
            case "fenced-" -> client.getFencedLock(name);
            case "fair-" -> client.getFairLock(name);
            case "spin-" -> client.getSpinLock(name);
            case "read-" -> client.getReadWriteLock(name).readLock();
            case "write-" -> client.getReadWriteLock(name).writeLock();
            case "multi-" -> multi(client, name);
            default -> client.getLock(name);
        };
        switch (verb.substring(kind.length())) {
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
            case "turn":
                lock.lock();
                try {
                    return client.getList(request[5], StringCodec.INSTANCE).add(request[6]);
                } finally {
                    lock.unlock();
                }
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

    private static Object semaphore(RSemaphore semaphore, String verb, String[] request) throws Exception {
        return switch (verb) {
            case "semaphore-set" -> semaphore.trySetPermits(Integer.parseInt(request[5]));
            case "semaphore-try-for" -> semaphore.tryAcquire(
                    Integer.parseInt(request[5]), Duration.ofMillis(Long.parseLong(request[6])));
            case "semaphore-release" -> {
                semaphore.release(Integer.parseInt(request[5]));
                yield "";
            }
            case "semaphore-add" -> {
                semaphore.addPermits(Integer.parseInt(request[5]));
                yield "";
            }
            case "semaphore-release-if-exists" -> semaphore.releaseIfExists(Integer.parseInt(request[5]));
            case "semaphore-available" -> semaphore.availablePermits();
            default -> throw new IllegalArgumentException("no such verb: " + verb);
        };
    }

    private static Object permits(RPermitExpirableSemaphore permits, String verb, String[] request) throws Exception {
        return switch (verb) {
            case "permits-set" -> permits.trySetPermits(Integer.parseInt(request[5]));
            case "permits-try-for" -> permits.tryAcquire(
                    Long.parseLong(request[5]), Long.parseLong(request[6]), TimeUnit.MILLISECONDS);
            case "permits-release" -> permits.tryRelease(request[5]);
            case "permits-many" -> String.join(",", permits.acquire(Integer.parseInt(request[5])));
            case "permits-release-many" -> permits.tryRelease(Arrays.asList(request[5].split(",")));
            case "permits-set-to" -> {
                permits.setPermits(Integer.parseInt(request[5]));
                yield "";
            }
            case "permits-all" -> permits.getPermits();
            case "permits-out" -> permits.acquiredPermits();
            case "permits-update" -> permits.updateLeaseTime(
                    request[5], Long.parseLong(request[6]), TimeUnit.MILLISECONDS);
            case "permits-lease" -> permits.getLeaseTime(request[5]);
            case "permits-available" -> permits.availablePermits();
            default -> throw new IllegalArgumentException("no such verb: " + verb);
        };
    }

    private static Object latch(RCountDownLatch latch, String verb, String[] request) throws Exception {
        return switch (verb) {
            case "latch-set" -> latch.trySetCount(Long.parseLong(request[5]));
            case "latch-down" -> {
                latch.countDown();
                yield "";
            }
            case "latch-wait-for" -> latch.await(Long.parseLong(request[5]), TimeUnit.MILLISECONDS);
            case "latch-count" -> latch.getCount();
            case "latch-delete" -> latch.delete();
            default -> throw new IllegalArgumentException("no such verb: " + verb);
        };
    }

    /** A lock or permits that a worker acquires and releases again and again. */
    private interface Held {
        void take() throws Exception;

        void giveBack();
    }

    private static Held held(RedissonClient client, String kind, String name) {
        switch (kind) {
            case "semaphore": {
                RSemaphore semaphore = client.getSemaphore(name);
                return new Held() {
                    public void take() throws InterruptedException {
                        semaphore.acquire();
                    }

                    public void giveBack() {
                        semaphore.release();
                    }
                };
            }
            case "permits": {
                RPermitExpirableSemaphore permits = client.getPermitExpirableSemaphore(name);
                return new Held() {
                    private String id;

                    public void take() throws InterruptedException {
                        id = permits.acquire(5, TimeUnit.MINUTES);
                    }

                    public void giveBack() {
                        permits.release(id);
                    }
                };
            }
            default: {
                RLock lock = switch (kind) {
                    case "read" -> client.getReadWriteLock(name).readLock();
                    case "write" -> client.getReadWriteLock(name).writeLock();
                    case "lock" -> client.getLock(name);
                    case "spin" -> client.getSpinLock(name);
                    default -> throw new IllegalArgumentException("no such kind: " + kind);
                };
                return new Held() {
                    public void take() {
                        lock.lock();
                    }

                    public void giveBack() {
                        lock.unlock();
                    }
                };
            }
        }
    }

    /**
     * For {@code forMs}, each of {@code workers} threads pauses at random, acquires the lock, holds it for a millisecond
     * and releases it. Returns the times of all holds as {@code begun-ended}, joined by commas.
     */
    private static Object work(RedissonClient client, String kind, String name, int workers, long forMs, long pauseMs)
            throws Exception {
        ConcurrentLinkedQueue<String> times = new ConcurrentLinkedQueue<>();
        AtomicReference<Throwable> problem = new AtomicReference<>();
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(forMs);
        List<Thread> running = new ArrayList<>();
        for (int number = 0; number < workers; number++) {
            Thread worker = new Thread(() -> {
                try {
                    Held held = held(client, kind, name);
                    while (System.nanoTime() < end) {
                        Thread.sleep(ThreadLocalRandom.current().nextLong(pauseMs + 1));
                        held.take();
                        long begun = System.nanoTime();
                        Thread.sleep(1);
                        times.add(begun + "-" + System.nanoTime());
                        held.giveBack();
                    }
                } catch (Throwable thrown) {
                    problem.compareAndSet(null, thrown);
                }
            });
            worker.start();
            running.add(worker);
        }
        for (Thread worker : running) {
            worker.join();
        }
        if (problem.get() != null) {
            throw new IllegalStateException("a worker failed: " + problem.get(), problem.get());
        }
        return String.join(",", times);
    }

    /** Each of {@code workers} threads repeats {@code times} times: lock, GET, SET one more, unlock. */
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
