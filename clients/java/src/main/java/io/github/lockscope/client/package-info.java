/**
 * Redisson-compatible locks in Redis through the Lockscope agent of this host.
 *
 * <p>Begin with {@link io.github.lockscope.client.Agent}.
 */
package io.github.lockscope.client;
