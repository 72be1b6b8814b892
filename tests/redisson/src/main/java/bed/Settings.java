package bed;

import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;

import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.Codec;
import org.redisson.client.codec.StringCodec;
import org.redisson.codec.SerializationCodec;
import org.redisson.config.BaseConfig;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/**
 * The settings of a client: {@code watchdog=<ms>}, {@code codec=string|java}, {@code prefix=<of every name>},
 * {@code fairwait=<ms>, from 3.46 on}, {@code timeout=<ms>}, {@code retries=<n>},
 * {@code subscriptions=<per connection, and connections for them>}. All other settings keep Redisson's defaults. A URL
 * that begins with {@code redis+cluster://} names some nodes of a cluster, separated by commas.
 */
final class Settings {
    private static final String CLUSTER = "redis+cluster://";

    private Settings() {}

    static RedissonClient open(String url, List<String> settings) {
        var config = new Config();
        // One JVM has many clients, each with a few threads: connections that Redisson opens in advance would only cost
        // time.
        config.setThreads(4).setNettyThreads(4);
        var server = url.startsWith(CLUSTER) ? cluster(config, url) : single(config, url);
        for (var setting : settings) {
            var equals = setting.indexOf('=');
            var value = setting.substring(equals + 1);
            switch (setting.substring(0, equals)) {
                case "watchdog" -> config.setLockWatchdogTimeout(Long.parseLong(value));
                case "fairwait" -> fairWait(config, Long.parseLong(value));
                case "codec" -> config.setCodec(codec(value));
                case "prefix" -> prefix(config, server, value);
                case "timeout" -> server.setTimeout(Integer.parseInt(value));
                case "subscriptions" -> {
                    ((SingleServerConfig) server).setSubscriptionsPerConnection(Integer.parseInt(value))
                            .setSubscriptionConnectionPoolSize(Integer.parseInt(value));
                    patience(server);
                }
                case "retries" -> server.setRetryAttempts(Integer.parseInt(value));
                default -> throw new IllegalArgumentException(setting);
            }
        }
        return Redisson.create(config);
    }

    private static BaseConfig<?> single(Config config, String url) {
        return config.useSingleServer().setAddress(url)
                .setConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1);
    }

    private static BaseConfig<?> cluster(Config config, String url) {
        var nodes = Arrays.stream(url.substring(CLUSTER.length()).split(",")).map(node -> "redis://" + node);
        return config.useClusterServers().addNodeAddress(nodes.toArray(String[]::new))
                .setMasterConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1);
    }

    private static Codec codec(String name) {
        return switch (name) {
            case "string" -> StringCodec.INSTANCE;
            case "java" -> new SerializationCodec();
            default -> throw new IllegalArgumentException(name);
        };
    }

    /** Calls the setter by name, because old versions lack it. */
    private static void fairWait(Config config, long ms) {
        try {
            Config.class.getMethod("setFairLockWaitTimeout", long.class).invoke(config, ms);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    /**
     * Lets threads wait longer for one of few subscriptions. Redisson tries four times, every second or two, for at
     * most 7.5 s, which may be too short on a busy machine. The timeout is set by name, because old versions derive it
     * from the attempts.
     */
    private static void patience(BaseConfig<?> server) {
        server.setRetryAttempts(100);
        try {
            server.getClass().getMethod("setSubscriptionTimeout", int.class).invoke(server, 150_000);
        } catch (NoSuchMethodException old) {
            return;
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Calls the setter by name, because it is in another class in 4.x. */
    private static void prefix(Config config, BaseConfig<?> server, String prefix) {
        try {
            var setter = Stream.of(config, server).flatMap(object -> Arrays.stream(object.getClass().getMethods()))
                    .filter(method -> method.getName().equals("setNameMapper")).findFirst().orElseThrow();
            var mapper = setter.getParameterTypes()[0];
            var target = setter.getDeclaringClass().isInstance(config) ? config : server;
            setter.invoke(target, Proxy.newProxyInstance(mapper.getClassLoader(), new Class<?>[] {mapper},
                    (self, method, args) -> switch (method.getName()) {
                        case "map" -> prefix + args[0];
                        case "unmap" -> ((String) args[0]).substring(prefix.length());
                        default -> throw new UnsupportedOperationException(method.getName());
                    }));
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }
}
