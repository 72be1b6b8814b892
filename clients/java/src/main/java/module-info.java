/** Redisson-compatible locks in Redis through the Lockscope agent of this host. */
module io.github.lockscope.client {
    exports io.github.lockscope.client;
}
