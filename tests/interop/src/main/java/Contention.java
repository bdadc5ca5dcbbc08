import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/**
 * One of many threads that want the same: it takes one of some names by chance, works for a moment
 * and gives it back, until the time is over. {@code contention.rs} does the same in Rust.
 *
 * <p>Each hold is told when it ends, {@code * kind name thread asked from to token}, by the clock of
 * {@link System#nanoTime}, which on Linux is CLOCK_MONOTONIC. Of permits, which nobody's name stands
 * behind in Redis, also the beginning is told: {@code + kind name thread from id}. A hold whose
 * lease may have been over already is told to end before it began.
 */
final class Contention implements Callable<Integer> {
    private static final long LEASE = 3_000;
    private static final long LAPSE = 200;
    private static final long WAIT = 20;

    /** In nanoseconds; what was asked for so shortly before is still held. */
    private static final long SHORT = 1_000_000_000;

    private final RedissonClient client;
    private final String kind;
    private final String[] names;
    private final int thread;
    private final boolean forgets;
    private final long end;
    private final Random random = new Random();

    /** WORK is {@code kind=name/name;kind=name}; each kind has so many threads. */
    static int run(
            RedissonClient client, String work, int threads, long nanos, ExecutorService pool)
            throws Exception {
        long end = System.nanoTime() + nanos;
        var all = new ArrayList<Future<Integer>>();
        for (String kind : work.split(";")) {
            String[] parts = kind.split("=", 2);
            for (int i = 0; i < threads; i++) {
                // One thread of each kind forgets to unlock now and then.
                var one = new Contention(
                        client, parts[0], parts[1].split("/"), all.size(), i == 0, end);
                all.add(pool.submit(one));
            }
        }
        int holds = 0;
        for (Future<Integer> one : all) {
            holds += one.get();
        }
        return holds;
    }

    private Contention(
            RedissonClient client,
            String kind,
            String[] names,
            int thread,
            boolean forgets,
            long end) {
        this.client = client;
        this.kind = kind;
        this.names = names;
        this.thread = thread;
        this.forgets = forgets;
        this.end = end;
    }

    @Override
    public Integer call() throws Exception {
        int holds = 0;
        long nextLapse = System.nanoTime() + random.nextInt(2_000_000_000);
        while (System.nanoTime() < end) {
            String name = names[random.nextInt(names.length)];
            boolean lapses = forgets && System.nanoTime() > nextLapse;
            int chance = lapses ? -1 : random.nextInt(10);
            boolean held = switch (kind) {
                case "semaphore" -> permit(client.getSemaphore(name), name, chance);
                case "permits" -> permit(client.getPermitExpirableSemaphore(name), name, chance);
                case "rw" -> locked(random.nextInt(4) == 0 ? "write" : "read", name, chance);
                default -> locked(kind, name, chance);
            };
            holds += held ? 1 : 0;
            if (lapses) {
                nextLapse = System.nanoTime() + 4_000_000_000L;
            }
            Thread.sleep(random.nextInt(10));
        }
        return holds;
    }

    private boolean locked(String kind, String name, int chance) throws Exception {
        var lock = (RLock) Peer.object(client, kind, name);
        boolean fenced = kind.equals("fenced");
        long token = 0;
        long asked = System.nanoTime();
        switch (chance) {
            case -1 -> lock.lock(LAPSE, TimeUnit.MILLISECONDS);
            case 0 -> {
                // While it collects them, a multi lock takes its locks for twice the wait only.
                long wait = kind.equals("multi") ? 1_000 : WAIT;
                if (!lock.tryLock(wait, LEASE, TimeUnit.MILLISECONDS)) {
                    return false;
                }
            }
            case 1, 2 -> lock.lock(LEASE, TimeUnit.MILLISECONDS);
            default -> {
                if (fenced) {
                    token = token(lock, "lockAndGetToken");
                } else {
                    lock.lock();
                }
            }
        }
        long from = System.nanoTime();
        if (chance == -1) {
            // It may have come too late to be used.
            boolean stands = held(lock, name) == name.split(",").length;
            tell(kind, name, asked, from, stands ? from : from - 1, 0);
            // To ask again under it would be to re-enter, and never to let go of it.
            Thread.sleep(LAPSE);
            while (held(lock, name) > 0 && System.nanoTime() < end) {
                Thread.sleep(10);
            }
            return true;
        }
        if (fenced && token == 0) {
            token = token(lock, "getToken");
        }
        LockSupport.parkNanos(4_000_000);
        if (chance == 9 && !kind.equals("multi")) {
            lock.lock();
            lock.unlock();
        }
        long to = System.nanoTime();
        // A thread that stood still for long may have outlived its lease; it proves nothing then.
        boolean stands = to - asked < SHORT
                || held(lock, name) == name.split(",").length;
        tell(kind, name, asked, from, stands ? to : from - 1, token);
        if (stands) {
            lock.unlock();
        }
        return true;
    }

    /** How many of its locks this thread holds; old versions do not say it of a multi lock. */
    private long held(RLock lock, String name) {
        if (!kind.equals("multi")) {
            return lock.isHeldByCurrentThread() ? 1 : 0;
        }
        return Arrays.stream(name.split(",")).map(client::getLock)
                .filter(RLock::isHeldByCurrentThread).count();
    }

    private boolean permit(RSemaphore semaphore, String name, int chance)
            throws InterruptedException {
        long asked = System.nanoTime();
        if (chance != 0) {
            semaphore.acquire();
        } else if (!semaphore.tryAcquire(WAIT, TimeUnit.MILLISECONDS)) {
            return false;
        }
        long from = System.nanoTime();
        begin(name, from, "-");
        LockSupport.parkNanos(8_000_000);
        tell(kind, name, asked, from, System.nanoTime(), 0);
        semaphore.release();
        return true;
    }

    private boolean permit(RPermitExpirableSemaphore semaphore, String name, int chance)
            throws InterruptedException {
        long asked = System.nanoTime();
        String id = switch (chance) {
            case -1 -> semaphore.acquire(LAPSE, TimeUnit.MILLISECONDS);
            case 0 -> semaphore.tryAcquire(WAIT, LEASE, TimeUnit.MILLISECONDS);
            default -> semaphore.acquire(LEASE, TimeUnit.MILLISECONDS);
        };
        if (id == null) {
            return false;
        }
        long from = System.nanoTime();
        if (chance == -1) {
            boolean stands = from - asked < TimeUnit.MILLISECONDS.toNanos(LAPSE / 2);
            tell(kind, name, asked, from, stands ? from : from - 1, 0);
            return true;
        }
        begin(name, from, id);
        LockSupport.parkNanos(8_000_000);
        long to = System.nanoTime();
        tell(kind, name, asked, from, to - asked < SHORT ? to : from - 1, 0);
        semaphore.release(id);
        return true;
    }

    /** Not in old versions, so not by its type. */
    private static long token(RLock lock, String method) throws Exception {
        try {
            return (Long) lock.getClass().getMethod(method).invoke(lock);
        } catch (InvocationTargetException thrown) {
            throw thrown.getCause() instanceof Exception cause ? cause : thrown;
        }
    }

    private void begin(String name, long from, String id) {
        Peer.say("+ " + kind + " " + Peer.encode(name) + " " + thread + " " + from + " " + id);
    }

    private void tell(String kind, String name, long asked, long from, long to, long token) {
        var words = List.of("*", kind, Peer.encode(name), thread, asked, from, to, token);
        Peer.say(String.join(" ", words.stream().map(String::valueOf).toList()));
    }
}
