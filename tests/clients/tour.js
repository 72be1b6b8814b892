// Drives the agent's socket with a Node library: every step of a worker's day.
// Arguments: socket, `ioredis` or `node-redis`.
'use strict';
const assert = require('node:assert');

const connect = {
  async ioredis(path) {
    const Redis = require('ioredis');
    const client = new Redis({ path, retryStrategy: null, connectionName: 'tour' });
    return {
      call: (...args) => client.call(...args.map(String)),
      close: () => client.quit(),
    };
  },
  async 'node-redis'(path) {
    const { createClient } = require('@redis/client');
    const client = createClient({ socket: { path, tls: false, reconnectStrategy: false }, name: 'tour' });
    client.on('error', () => {});
    await client.connect();
    return {
      call: (...args) => client.sendCommand(args.map(String)),
      close: () => client.close(),
    };
  },
};

/** A RESP2 client gives a flat list where a RESP3 client gives a map. */
function map(reply) {
  if (reply === null) return null;
  if (reply instanceof Map) return Object.fromEntries(reply);
  if (!Array.isArray(reply)) return reply;
  const pairs = [];
  for (let i = 0; i < reply.length; i += 2) pairs.push([reply[i], reply[i + 1]]);
  return Object.fromEntries(pairs);
}

async function main() {
  const [path, library] = process.argv.slice(2);
  const agent = await connect[library](path);
  const lock = async (...args) => map(await agent.call('LOCK', ...args));
  assert.equal(await agent.call('PING'), 'PONG');
  assert.equal((await lock('tour:free')).holds, 1);
  assert.equal((await lock('tour:free')).holds, 2);
  assert.equal(await agent.call('UNLOCK', 'tour:free'), 1);
  assert.equal(await agent.call('UNLOCK', 'tour:free'), 0);
  assert.equal(await lock('tour:busy', 'NOWAIT'), null);
  await assert.rejects(agent.call('UNLOCK', 'tour:busy'), /^\w*Error: NOTHELD /);
  // Two tasks on one connection, told apart by their owners' numbers.
  const [first, second] = [lock('tour:shared', 'OWNER', 1), lock('tour:shared', 'OWNER', 2)];
  assert.equal((await first).holds, 1);
  assert.equal(await agent.call('UNLOCK', 'tour:shared', 'OWNER', 1), 0);
  assert.equal((await second).holds, 1);
  assert.equal((await lock('tour:busy', 'WAIT', 60000)).lock, 'tour:busy');
  assert.equal(await agent.call('UNLOCK', 'tour:busy'), 0);
  await agent.close();
  console.log('done');
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
