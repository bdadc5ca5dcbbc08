import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/**
 * Does with Redisson what it is told, line by line, until standard input ends.
 *
 * <p>A line is a number, a verb and its arguments, each percent-encoded; the answer repeats the
 * number: {@code 7 ok true}, or {@code 7 err IllegalMonitorStateException the+text}. Answers come
 * when they are ready, in any order. A lock belongs to a thread, so each logical thread of a client
 * is a Java thread of its own, with its own queue of commands; {@code -} is any thread.
 *
 * <p>{@code contend} also tells its holds, see {@link Contention}.
 */
public final class Peer {
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    private static final Map<String, RedissonClient> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, ExecutorService> THREADS = new ConcurrentHashMap<>();

    private static final Map<Class<?>, Function<String, Object>> PARSERS = Map.of(
            int.class, Integer::valueOf,
            long.class, Long::valueOf,
            String.class, text -> text,
            TimeUnit.class, TimeUnit::valueOf);

    /** For what belongs to no thread. */
    private static final ExecutorService POOL = Executors.newCachedThreadPool(Peer::daemon);

    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            var words = new ArrayList<String>();
            for (String word : line.split(" ", -1)) {
                words.add(URLDecoder.decode(word, StandardCharsets.UTF_8));
            }
            String number = words.remove(0);
            String verb = words.remove(0);
            place(verb, words).submit(() -> answer(number, verb, words));
        }
        // Whoever gave the orders is gone. Locks that are held end as those of a killed process.
        Runtime.getRuntime().halt(0);
    }

    private static void answer(String number, String verb, List<String> args) {
        String answer;
        try {
            answer = "ok " + encode(String.valueOf(run(verb, args)));
        } catch (Throwable error) {
            String text = String.valueOf(error.getMessage());
            answer = "err " + error.getClass().getSimpleName() + " " + encode(text);
        }
        say(number + " " + answer);
    }

    /** Where a command runs: in its logical thread, or where nobody waits for anybody. */
    private static ExecutorService place(String verb, List<String> args) {
        boolean anywhere = !verb.equals("call") && !verb.equals("thread") || args.get(1).equals("-");
        if (anywhere) {
            return POOL;
        }
        String thread = args.get(0) + " " + args.get(1);
        return THREADS.computeIfAbsent(
                thread, key -> Executors.newSingleThreadExecutor(Peer::daemon));
    }

    private static Object run(String verb, List<String> args) throws Exception {
        return switch (verb) {
            case "nano" -> System.nanoTime();
            case "jar" -> Redisson.class.getProtectionDomain().getCodeSource().getLocation();
            // CLIENT KIND URL WATCHDOG_MS PREFIX
            case "open" -> {
                var client = Redisson.create(config(args));
                CLIENTS.put(args.get(0), client);
                yield client.getId();
            }
            case "close" -> {
                client(args).shutdown(0, 5, TimeUnit.SECONDS);
                yield "closed";
            }
            // CLIENT THREAD
            case "thread" -> Thread.currentThread().getId();
            // CLIENT THREAD KIND NAME METHOD ARGUMENT...
            case "call" -> call(
                    args.get(2).equals("red")
                            ? red(args.get(0), args.get(3))
                            : object(client(args), args.get(2), args.get(3)),
                    args.get(4),
                    args.subList(5, args.size()));
            // CLIENT WORK THREADS MILLISECONDS
            case "contend" -> Contention.run(
                    client(args),
                    args.get(1),
                    Integer.parseInt(args.get(2)),
                    TimeUnit.MILLISECONDS.toNanos(Long.parseLong(args.get(3))),
                    POOL);
            default -> throw new IllegalArgumentException("no such verb: " + verb);
        };
    }

    private static RedissonClient client(List<String> args) {
        return CLIENTS.get(args.get(0));
    }

    /** The names of a multi lock are separated by commas. */
    static Object object(RedissonClient client, String kind, String name)
            throws Exception {
        return switch (kind) {
            case "lock" -> client.getLock(name);
            case "fair" -> client.getFairLock(name);
            case "read" -> client.getReadWriteLock(name).readLock();
            case "write" -> client.getReadWriteLock(name).writeLock();
            // Not in old versions.
            case "fenced" -> call(client, "getFencedLock", List.of(name));
            case "spin" -> call(client, "getSpinLock", List.of(name));
            case "multi" -> client.getMultiLock(
                    Arrays.stream(name.split(",")).map(client::getLock).toArray(RLock[]::new));
            case "semaphore" -> client.getSemaphore(name);
            case "permits" -> client.getPermitExpirableSemaphore(name);
            case "latch" -> client.getCountDownLatch(name);
            default -> throw new IllegalArgumentException("no such kind: " + kind);
        };
    }

    /** Of one name on several servers; their clients are separated by commas. */
    @SuppressWarnings("deprecation")
    private static Object red(String clients, String name) {
        return new RedissonRedLock(Arrays.stream(clients.split(","))
                .map(client -> CLIENTS.get(client).getLock(name))
                .toArray(RLock[]::new));
    }

    /** Calls a method that takes so many numbers, texts and units of time. */
    private static Object call(Object object, String name, List<String> args) throws Exception {
        for (Method method : object.getClass().getMethods()) {
            Class<?>[] types = method.getParameterTypes();
            boolean fits = method.getName().equals(name) && types.length == args.size()
                    && Arrays.stream(types).allMatch(PARSERS::containsKey);
            if (!fits) {
                continue;
            }
            Object[] values = new Object[types.length];
            for (int i = 0; i < types.length; i++) {
                values[i] = PARSERS.get(types[i]).apply(args.get(i));
            }
            try {
                return method.invoke(object, values);
            } catch (InvocationTargetException thrown) {
                Throwable cause = thrown.getCause();
                throw cause instanceof Exception ? (Exception) cause : thrown;
            }
        }
        throw new NoSuchMethodException(name + args);
    }

    private static Config config(List<String> args) throws ReflectiveOperationException {
        var config = new Config();
        // The codec is of no use for locks, and the default one of old versions needs an old JDK.
        config.setCodec(StringCodec.INSTANCE);
        config.setThreads(8);
        config.setNettyThreads(4);
        config.setLockWatchdogTimeout(Long.parseLong(args.get(3)));
        Object server;
        if (args.get(1).equals("cluster")) {
            ClusterServersConfig cluster = config.useClusterServers();
            cluster.addNodeAddress(args.get(2));
            cluster.setMasterConnectionMinimumIdleSize(2);
            cluster.setMasterConnectionPoolSize(24);
            server = cluster;
        } else {
            SingleServerConfig single = config.useSingleServer();
            single.setAddress(args.get(2));
            single.setConnectionMinimumIdleSize(2);
            single.setConnectionPoolSize(24);
            server = single;
        }
        String prefix = args.get(4);
        if (!prefix.isEmpty()) {
            mapNames(config, server, prefix);
        }
        return config;
    }

    /** The mapper's interface is younger than 3.11, and its setter has moved in 4. */
    private static void mapNames(Config config, Object server, String prefix)
            throws ReflectiveOperationException {
        Class<?> type = nameMapper();
        Object mapper = Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type},
                (self, method, args) -> switch (method.getName()) {
                    case "map" -> prefix + args[0];
                    case "unmap" -> ((String) args[0]).substring(prefix.length());
                    case "hashCode" -> System.identityHashCode(self);
                    case "equals" -> self == args[0];
                    default -> prefix;
                });
        for (Object target : new Object[] {config, server}) {
            for (Method method : target.getClass().getMethods()) {
                if (method.getName().equals("setNameMapper")) {
                    method.invoke(target, mapper);
                    return;
                }
            }
        }
        throw new NoSuchMethodException("setNameMapper");
    }

    private static Class<?> nameMapper() throws ClassNotFoundException {
        try {
            return Class.forName("org.redisson.config.NameMapper");
        } catch (ClassNotFoundException older) {
            return Class.forName("org.redisson.api.NameMapper");
        }
    }

    static void say(String line) {
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    static String encode(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8);
    }

    private static Thread daemon(Runnable work) {
        var thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    }
}
