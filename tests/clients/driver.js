// Runs commands from standard input on the agent's socket with a Node library.
//
// Arguments: `ioredis` or `node-redis`, the socket, `advised` (settings) or `default`. A line is a tag, a connection's name
// and a command; several commands with ` ; ` between them are sent at once. The result is printed as the tag and a line of
// JSON, an error as `{"error": text}`.
'use strict';
const readline = require('node:readline');

const [library, path, settings] = process.argv.slice(2);
const advised = settings === 'advised';

const connect = {
  async ioredis() {
    const Redis = require('ioredis');
    const client = new Redis(advised ? { path, retryStrategy: null } : { path });
    client.on('error', () => {});
    return (words) => client.call(...words);
  },
  async 'node-redis'() {
    const { createClient } = require('@redis/client');
    const socket = advised ? { path, tls: false, reconnectStrategy: false } : { path, tls: false };
    const client = createClient({ socket });
    client.on('error', () => {});
    await client.connect();
    return (words) => client.sendCommand(words);
  },
};

const failure = (error) => ({ error: `${error.constructor.name}: ${error.message}` });
const say = (tag, reply) => console.log(`${tag} ${JSON.stringify(reply ?? null)}`);
const clients = {};

async function obey(line) {
  const [tag, name, ...rest] = line.split(' ');
  const batch = rest.join(' ').split(' ; ').map((command) => command.split(' '));
  try {
    const call = await (clients[name] ??= connect[library]());
    const replies = await Promise.all(batch.map((words) => call(words).catch(failure)));
    say(tag, batch.length === 1 ? replies[0] : replies);
  } catch (error) {
    say(tag, failure(error));
  }
}

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', obey);
lines.on('close', () => process.exit());
