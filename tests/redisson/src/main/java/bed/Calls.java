package bed;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

import org.redisson.RedissonMultiLock;
import org.redisson.api.RLock;

/**
 * Chains of calls by name, so that the same words drive every version of Redisson, and a call that a version lacks
 * fails only when it is made: {@code getReadWriteLock orders . readLock . tryLock 100 200 ms}.
 *
 * <p>A chain begins at the client, or with {@code multi} or {@code red} and the names of its members; such a name may
 * be {@code client@name} for a lock of another client. {@code ms} is the unit of time; {@code a,b} a list.
 */
final class Calls {
    private Calls() {}

    static Object run(Client client, Map<String, Client> all, List<String> words) throws Exception {
        var last = words.lastIndexOf(".");
        if (last < 0) {
            return call(client.redisson(), words);
        }
        return call(object(client, all, words.subList(0, last)), words.subList(last + 1, words.size()));
    }

    /** Returns the object that a chain names, the same one each time. */
    static Object object(Client client, Map<String, Client> all, List<String> words) throws Exception {
        var key = String.join(" ", words);
        var known = client.objects().get(key);
        if (known != null) {
            return known;
        }
        var last = words.lastIndexOf(".");
        Object made;
        if (last >= 0) {
            made = call(object(client, all, words.subList(0, last)), words.subList(last + 1, words.size()));
        } else {
            made = switch (words.get(0)) {
                case "multi" -> new RedissonMultiLock(members(client, all, words));
                case "red" -> redLock(members(client, all, words));
                default -> call(client.redisson(), words);
            };
        }
        var before = client.objects().putIfAbsent(key, made);
        return before == null ? made : before;
    }

    private static RLock[] members(Client client, Map<String, Client> all, List<String> words) {
        return words.stream().skip(1).map(word -> {
            var colon = word.indexOf('@');
            return colon < 0
                    ? client.redisson().getLock(word)
                    : all.get(word.substring(0, colon)).redisson().getLock(word.substring(colon + 1));
        }).toArray(RLock[]::new);
    }

    /** Creates a red lock by the name of its class, which is deprecated but still in use. */
    private static Object redLock(RLock[] members) throws ReflectiveOperationException {
        return Class.forName("org.redisson.RedissonRedLock").getConstructor(RLock[].class)
                .newInstance((Object) members);
    }

    private static Object call(Object object, List<String> words) throws Exception {
        var name = words.get(0);
        var args = words.subList(1, words.size());
        for (Method method : object.getClass().getMethods()) {
            if (!method.getName().equals(name) || method.getParameterCount() != args.size()) {
                continue;
            }
            var converted = convert(method.getParameterTypes(), args);
            if (converted == null) {
                continue;
            }
            try {
                method.setAccessible(true);
                var value = method.invoke(object, converted.toArray());
                return value instanceof Future<?> future ? future.get() : value;
            } catch (InvocationTargetException | ExecutionException thrown) {
                if (thrown.getCause() instanceof Exception cause) {
                    throw cause;
                }
                throw thrown;
            }
        }
        throw new NoSuchMethodException(object.getClass().getSimpleName() + "." + name + args);
    }

    /** Returns the words as these types, null if one does not fit. */
    private static List<Object> convert(Class<?>[] types, List<String> words) {
        var converted = new ArrayList<>();
        for (int i = 0; i < types.length; i++) {
            var value = convert(types[i], words.get(i));
            if (value == null) {
                return null;
            }
            converted.add(value);
        }
        return converted;
    }

    private static Object convert(Class<?> type, String word) {
        try {
            if (type == TimeUnit.class) {
                return word.equals("ms") ? TimeUnit.MILLISECONDS : null;
            }
            if (type == String.class || type == Object.class) {
                return word;
            }
            if (type == long.class) {
                return Long.valueOf(word);
            }
            if (type == int.class) {
                return Integer.valueOf(word);
            }
            if (type == boolean.class) {
                return Boolean.valueOf(word);
            }
            if (type.isEnum()) {
                return Arrays.stream(type.getEnumConstants()).filter(c -> c.toString().equals(word)).findAny()
                        .orElse(null);
            }
            return type == List.class || type == Collection.class ? List.of(word.split(",")) : null;
        } catch (NumberFormatException other) {
            return null;
        }
    }
}
