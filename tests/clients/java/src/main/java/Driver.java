import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.output.GenericMapOutput;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.output.ObjectOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.newsclub.net.unix.AFUNIXSocket;
import org.newsclub.net.unix.AFUNIXSocketAddress;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.JedisSocketFactory;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.providers.PooledConnectionProvider;
import redis.clients.jedis.util.KeyValue;
import redis.clients.jedis.util.SafeEncoder;

/**
 * Runs commands from standard input on the agent's socket with a Java library.
 *
 * <p>Arguments: {@code lettuce} or {@code jedis}, the socket, {@code advised} (settings), {@code default} or, for
 * Lettuce, {@code hasty}: it gives up a command after five seconds instead of a minute. A line is a tag, a
 * connection's name and a command; several commands with {@code " ; "} between them are sent at once. The result is
 * printed as the tag and a line of JSON, an error as {@code {"error": text}}, a push as {@code push}, the connection's
 * name and a list.
 */
public final class Driver {
    /** One connection of a library. Sends all commands before it waits for a reply. */
    interface Caller {
        List<Object> run(List<String[]> commands) throws Exception;
    }

    private static final Gson JSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

    public static void main(String[] args) throws Exception {
        String library = args[0];
        String path = args[1];
        Map<String, Caller> callers = new HashMap<>();
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", 3);
            Caller caller = callers.get(parts[1]);
            if (caller == null) {
                caller = library.equals("lettuce") ? lettuce(path, args[2], parts[1]) : jedis(path, args[2].equals("advised"));
                callers.put(parts[1], caller);
            }
            List<String[]> commands = new ArrayList<>();
            for (String command : parts[2].split(" ; ")) {
                commands.add(command.split(" "));
            }
            Caller chosen = caller;
            var task = new Thread(() -> {
                try {
                    List<Object> replies = chosen.run(commands);
                    say(parts[0], commands.size() == 1 ? replies.get(0) : replies);
                } catch (Exception error) {
                    say(parts[0], failure(error));
                }
            });
            task.setDaemon(true);
            task.start();
        }
        System.exit(0);
    }

    static synchronized void say(String what, Object value) {
        System.out.println(what + " " + JSON.toJson(plain(value)));
    }

    static Map<String, Object> failure(Throwable error) {
        return Map.of("error", error.getClass().getSimpleName() + ": " + error.getMessage());
    }

    static Object plain(Object value) {
        if (value instanceof byte[] bytes) {
            return SafeEncoder.encode(bytes);
        }
        if (value instanceof ByteBuffer bytes) {
            return StandardCharsets.UTF_8.decode(bytes.duplicate()).toString();
        }
        if (value instanceof Map<?, ?> map) {
            var plain = new LinkedHashMap<Object, Object>();
            map.forEach((key, item) -> plain.put(plain(key), plain(item)));
            return plain;
        }
        if (value instanceof List<?> list) {
            if (!list.isEmpty() && list.get(0) instanceof KeyValue<?, ?>) {
                var plain = new LinkedHashMap<Object, Object>();
                list.forEach(item -> {
                    var pair = (KeyValue<?, ?>) item;
                    plain.put(plain(pair.getKey()), plain(pair.getValue()));
                });
                return plain;
            }
            return list.stream().map(Driver::plain).toList();
        }
        if (value instanceof Throwable error) {
            return failure(error);
        }
        return value;
    }

    static Caller lettuce(String path, String settings, String name) {
        RedisURI uri = RedisURI.create("redis-socket://" + path);
        if (settings.equals("hasty")) {
            uri.setTimeout(Duration.ofSeconds(5));
        }
        RedisClient client = RedisClient.create(uri);
        if (settings.equals("advised")) {
            client.setOptions(ClientOptions.builder().autoReconnect(false).build());
        }
        var connection = client.connect();
        if (settings.equals("advised")) {
            connection.setTimeout(Duration.ZERO);
        }
        connection.addListener(push -> say("push " + name, push.getContent(StandardCharsets.UTF_8::decode).stream()
                .map(item -> item instanceof CharBuffer text ? text.toString() : item).toList()));
        return commands -> {
            var replies = new ArrayList<CompletableFuture<?>>();
            for (String[] words : commands) {
                var args = new CommandArgs<>(StringCodec.UTF8);
                Arrays.stream(words).skip(1).forEach(args::add);
                var reply = connection.async().dispatch(word(words[0]), output(words[0]), args);
                replies.add(reply.toCompletableFuture().handle((value, error) -> error == null ? (Object) value : error));
            }
            var values = new ArrayList<Object>();
            for (var reply : replies) {
                values.add(reply.get());
            }
            return values;
        };
    }

    /**
     * Returns the output for a command's reply, which Lettuce needs in advance; its output for any object fails on
     * null.
     */
    static CommandOutput<String, String, ?> output(String word) {
        return switch (word) {
            case "LOCK", "SESSION" -> new GenericMapOutput<>(StringCodec.UTF8);
            case "UNLOCK", "EXTEND", "CANCEL" -> new IntegerOutput<>(StringCodec.UTF8);
            default -> new ObjectOutput<>(StringCodec.UTF8);
        };
    }

    static ProtocolKeyword word(String word) {
        return new ProtocolKeyword() {
            @Override
            public byte[] getBytes() {
                return word.getBytes(StandardCharsets.UTF_8);
            }

            @Override
            public String toString() {
                return word;
            }
        };
    }

    static Caller jedis(String path, boolean advised) {
        var settings = DefaultJedisClientConfig.builder();
        var config = advised ? settings.socketTimeoutMillis(0).build() : settings.build();
        JedisSocketFactory sockets = () -> {
            try {
                var socket = AFUNIXSocket.connectTo(AFUNIXSocketAddress.of(new File(path)));
                // Jedis's own factory, which is for TCP, does this too.
                socket.setSoTimeout(config.getSocketTimeoutMillis());
                return socket;
            } catch (IOException error) {
                throw new JedisConnectionException(error);
            }
        };
        if (!advised) {
            // A pool, as in most programs.
            var connections = new PooledConnectionProvider(new ConnectionFactory(sockets, config));
            var client = redis.clients.jedis.RedisClient.builder().connectionProvider(connections).build();
            return commands -> {
                var replies = new ArrayList<Object>();
                for (String[] words : commands) {
                    replies.add(client.sendCommand(SafeEncoder.encode(words[0])::clone, rest(words)));
                }
                return replies;
            };
        }
        var connection = new Connection(sockets, config);
        return commands -> {
            synchronized (connection) {
                for (String[] words : commands) {
                    connection.sendCommand(SafeEncoder.encode(words[0])::clone, rest(words));
                }
                return commands.size() == 1 ? Arrays.asList(connection.getOne()) : connection.getMany(commands.size());
            }
        };
    }

    static String[] rest(String[] words) {
        return Arrays.copyOfRange(words, 1, words.length);
    }
}
