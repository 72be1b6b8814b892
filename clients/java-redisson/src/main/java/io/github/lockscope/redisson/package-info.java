/**
 * Redisson's lock interfaces on the Lockscope agent of this host.
 *
 * <p>Begin with {@link io.github.lockscope.redisson.LockscopeLocks}.
 */
package io.github.lockscope.redisson;
