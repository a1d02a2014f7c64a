package leasehold.interop;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryOneTime;

/**
 * Carries out the tests' requests with Curator, and reports the results.
 *
 * <p>Standard input, one request a line, fields separated by tabs: {@code number thread client verb argument…}.
 * Requests of one thread run in order on a Java thread of that name; different threads run side by side.
 * Standard output, one answer a line: {@code number ok|error begun ended text}, where {@code begun} and
 * {@code ended} are {@link System#nanoTime} (on Linux CLOCK_MONOTONIC, the same in every process) around the call,
 * and {@code text} is its result, or the exception's class and message. The program ends with its input.
 */
public final class CuratorAgent {
    private static final PrintStream ANSWERS =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    private final Map<String, CuratorFramework> clients = new ConcurrentHashMap<>();
    /** Curator counts holds in the lock object, so there is one of each for each client. */
    private final Map<String, InterProcessMutex> locks = new ConcurrentHashMap<>();
    private final Map<String, InterProcessReadWriteLock> pairs = new ConcurrentHashMap<>();
    private final Map<String, ExecutorService> threads = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        new CuratorAgent().serve();
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
            threads.computeIfAbsent(request[1], CuratorAgent::thread).execute(() -> answer(request));
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
        switch (request[3]) {
            case "connect":
                return connect(client, request[4], Integer.parseInt(request[5]));
            case "reset":
                // The next test reuses this JVM. All threads are idle, since each request has been answered.
                clients.values().forEach(CuratorFramework::close);
                clients.clear();
                locks.clear();
                pairs.clear();
                threads.values().forEach(ExecutorService::shutdown);
                threads.clear();
                return "";
            case "count-up":
                return countUp(lock(client, request[4]), Path.of(request[5]), Integer.parseInt(request[6]));
            default:
                if (request[3].startsWith("read-") || request[3].startsWith("write-")) {
                    return perform(pair(client, request[4]), request);
                }
                return operate(lock(client, request[4]), request);
        }
    }

    private String connect(String client, String servers, int sessionMs) throws Exception {
        CuratorFramework connected =
                CuratorFrameworkFactory.newClient(servers, sessionMs, 10_000, new RetryOneTime(100));
        connected.start();
        if (!connected.blockUntilConnected(20, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not connected");
        }
        clients.put(client, connected);
        return client;
    }

    /** A verb begins with the half that it uses: {@code read-} or {@code write-}. */
    private Object perform(InterProcessReadWriteLock pair, String[] request) throws Exception {
        boolean reads = request[3].startsWith("read-");
        request[3] = request[3].substring(reads ? "read-".length() : "write-".length());
        return operate(reads ? pair.readLock() : pair.writeLock(), request);
    }

    private InterProcessReadWriteLock pair(String client, String path) {
        return pairs.computeIfAbsent(
                client + " " + path, any -> new InterProcessReadWriteLock(clients.get(client), path));
    }

    private InterProcessMutex lock(String client, String path) {
        return locks.computeIfAbsent(client + " " + path, any -> new InterProcessMutex(clients.get(client), path));
    }

    private static Object operate(InterProcessMutex lock, String[] request) throws Exception {
        switch (request[3]) {
            case "lock":
                lock.acquire();
                return "";
            case "try-for":
                return lock.acquire(Long.parseLong(request[5]), TimeUnit.MILLISECONDS);
            case "unlock":
                lock.release();
                return "";
            case "is-mine":
                return lock.isOwnedByCurrentThread();
            case "participants":
                return lock.getParticipantNodes().size();
            default:
                throw new IllegalArgumentException("no such verb: " + request[3]);
        }
    }

    /** Repeats {@code times} times: lock, read the number in a file, write one more, unlock. */
    private static Object countUp(InterProcessMutex lock, Path counter, int times) throws Exception {
        for (int time = 0; time < times; time++) {
            lock.acquire();
            try {
                long was = Long.parseLong(Files.readString(counter).trim());
                Files.writeString(counter, String.valueOf(was + 1));
            } finally {
                lock.release();
            }
        }
        return times;
    }
}
