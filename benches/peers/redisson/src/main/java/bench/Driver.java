package bench;

import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * WORKLOAD URL SECONDS TASKS: one turn of Redisson, as benches/peers/README.md says. A task is a
 * thread; lock() without a lease, so that the watchdog renews it; every setting is the default.
 */
public final class Driver {
    static final long WATCH_EVERY = 200_000_000L;
    static final long KEPT_MS = 5;
    static final long GATHERING_MS = 500;

    /** What one task saw; guarded by itself. */
    static final class Seen {
        long[] times = new long[1024];
        long[] sections = new long[2048];
        int served;
        long waitsSince = -1;

        synchronized void served(long time, long enter, long leave) {
            if (served == times.length) {
                times = Arrays.copyOf(times, served * 2);
                sections = Arrays.copyOf(sections, served * 4);
            }
            times[served] = time;
            sections[served * 2] = enter;
            sections[served * 2 + 1] = leave;
            served++;
            waitsSince = -1;
        }

        synchronized void waits(long since) {
            waitsSince = since;
        }
    }

    static RedissonClient redisson;
    static AtomicLong overlaps;

    public static void main(String[] args) throws Exception {
        String workload = args[0];
        double seconds = Double.parseDouble(args[2]);
        int tasks = Integer.parseInt(args[3]);
        Config config = new Config();
        config.useSingleServer().setAddress(args[1].replaceAll("/$", ""));
        redisson = Redisson.create(config);
        String given = System.getenv("WARMUP");
        double warmUp = given == null ? 5 : Double.parseDouble(given);
        if (workload.equals("hot")) {
            hot("bench:warm", warmUp, tasks, false, true);
        } else {
            uncontended(warmUp, tasks);
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        lines.readLine();
        long start = System.nanoTime();
        Seen[] seen;
        overlaps = new AtomicLong();
        switch (workload) {
            case "uncontended": seen = uncontended(seconds, tasks); break;
            case "hot": seen = hot("bench:hot", seconds, tasks, false, false); break;
            case "drain":
                AtomicLong released = new AtomicLong();
                seen = drain(seconds, tasks, released);
                start = released.get();
                break;
            default: seen = new Seen[] {handoff(lines)};
        }
        report(workload, seen, (System.nanoTime() - start) / 1e9);
        System.out.flush();
        Runtime.getRuntime().halt(0); // whoever still waits for a lock waits in vain
    }

    static Thread start(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    static Seen[] uncontended(double seconds, int tasks) throws Exception {
        long until = System.nanoTime() + (long) (seconds * 1e9);
        Seen[] all = new Seen[tasks];
        Thread[] threads = new Thread[tasks];
        for (int task = 0; task < tasks; task++) {
            Seen seen = all[task] = new Seen();
            RLock lock = redisson.getLock("bench:own:" + ProcessHandle.current().pid() + ":" + task);
            threads[task] = start(() -> {
                long began = System.nanoTime();
                while (began < until) {
                    lock.lock();
                    lock.unlock();
                    long done = System.nanoTime();
                    seen.served(done - began, 0, 0);
                    began = done;
                }
            });
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return all;
    }

    /** Each waits once, for a lock that is held while they gather. */
    static Seen[] drain(double seconds, int tasks, AtomicLong released) throws Exception {
        CountDownLatch held = new CountDownLatch(1);
        start(() -> { // its owner is the thread
            RLock lock = redisson.getLock("bench:drain");
            lock.lock();
            held.countDown();
            pause(GATHERING_MS);
            released.set(System.nanoTime());
            lock.unlock();
        });
        held.await();
        return hot("bench:drain", GATHERING_MS / 1e3 + seconds, tasks, true, false);
    }

    /**
     * One lock for all, which each wants over and over, or once. Tasks that wait when the time is
     * over are left behind, unless drain.
     */
    static Seen[] hot(String name, double seconds, int tasks, boolean once, boolean drain)
            throws Exception {
        long until = System.nanoTime() + (long) (seconds * 1e9);
        AtomicBoolean inside = new AtomicBoolean();
        AtomicLong watchNext = new AtomicLong(System.nanoTime());
        Seen[] all = new Seen[tasks];
        Thread[] threads = new Thread[tasks];
        for (int task = 0; task < tasks; task++) {
            Seen seen = all[task] = new Seen();
            RLock lock = redisson.getLock(name);
            threads[task] = start(() -> {
                long began = System.nanoTime();
                while (began < until) {
                    seen.waits(began);
                    lock.lock();
                    if (!inside.compareAndSet(false, true) && overlaps != null) {
                        overlaps.incrementAndGet();
                    }
                    long enter = System.nanoTime();
                    long leave = enter;
                    if (enter >= watchNext.get()) {
                        watchNext.set(enter + WATCH_EVERY);
                        pause(1);
                        leave = System.nanoTime();
                    }
                    if (enter < until) {
                        seen.served(enter - began, enter, leave);
                    }
                    inside.set(false);
                    lock.unlock();
                    if (once) {
                        return;
                    }
                    began = System.nanoTime();
                }
            });
        }
        if (once) {
            for (Thread thread : threads) {
                thread.join(Math.max(1, (until - System.nanoTime()) / 1_000_000));
            }
            return all;
        }
        Thread.sleep(Math.max(0, (until - System.nanoTime()) / 1_000_000));
        if (drain) {
            for (Thread thread : threads) {
                thread.join(5000);
            }
        }
        return all;
    }

    static Seen handoff(BufferedReader lines) throws Exception {
        RLock lock = redisson.getLock("bench:ball");
        Seen seen = new Seen();
        while (lines.readLine() != null) {
            long began = System.nanoTime();
            lock.lock();
            long enter = System.nanoTime();
            System.out.println("in");
            pause(KEPT_MS);
            seen.served(enter - began, enter, System.nanoTime());
            lock.unlock();
        }
        return seen;
    }

    static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    static void report(String workload, Seen[] all, double seconds) throws Exception {
        int ops = 0;
        int least = Integer.MAX_VALUE;
        int most = 0;
        long waiting = 0;
        long end = System.nanoTime();
        long[] times = new long[0];
        long[][] sections = new long[0][];
        for (Seen seen : all) {
            synchronized (seen) {
                int served = seen.served;
                times = Arrays.copyOf(times, ops + served);
                sections = Arrays.copyOf(sections, ops + served);
                for (int i = 0; i < served; i++) {
                    times[ops + i] = seen.times[i];
                    sections[ops + i] =
                        new long[] {seen.sections[2 * i], seen.sections[2 * i + 1]};
                }
                ops += served;
                least = Math.min(least, served);
                most = Math.max(most, served);
                if (seen.waitsSince >= 0) {
                    waiting = Math.max(waiting, end - seen.waitsSince);
                }
            }
        }
        Arrays.sort(times);
        Arrays.sort(sections, (a, b) -> Long.compare(a[0], b[0]));
        String path = System.getenv("SECTIONS");
        if (path != null && !workload.equals("uncontended")) {
            try (DataOutputStream out =
                    new DataOutputStream(new BufferedOutputStream(new FileOutputStream(path)))) {
                for (long[] section : sections) {
                    out.writeLong(Long.reverseBytes(section[0]));
                    out.writeLong(Long.reverseBytes(section[1]));
                }
            }
        }
        double longest = ops == 0 ? waiting : Math.max(waiting, times[ops - 1]);
        System.out.println(String.format(Locale.ROOT,
            "{\"peer\":\"redisson\",\"version\":\"%s\",\"workload\":\"%s\",\"ops\":%d,"
                + "\"seconds\":%.4f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"longest_us\":%.1f,"
                + "\"min_served\":%d,\"max_served\":%d,\"failed\":0,\"overlaps\":%d}",
            version(), workload, ops, seconds, at(times, 0.5), at(times, 0.99), longest / 1e3,
            least, most, overlaps.get()));
    }

    static double at(long[] times, double quantile) {
        return times.length == 0 ? 0 : times[(int) ((times.length - 1) * quantile)] / 1e3;
    }

    static String version() throws Exception {
        Properties pom = new Properties();
        String path = "/META-INF/maven/org.redisson/redisson/pom.properties";
        pom.load(Redisson.class.getResourceAsStream(path));
        return pom.getProperty("version");
    }
}
