// Measures node-redlock on ioredis: `node redlock.js TASK PORT WORKERS SECONDS` prints one line of JSON.
'use strict';
const Redis = require('ioredis');
const { default: Redlock } = require('redlock');

const LEASE_MS = 30000;
// The prefix is unique, so that locks left by an earlier run do not interfere.
const PREFIX = `bench:${process.pid}`;
const [task, port, workers, seconds] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const now = () => Number(process.hrtime.bigint()) / 1e6;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const client = new Redis(port, '127.0.0.1');
// Default settings, except that it never gives up: everyone waits as long as necessary.
const redlock = new Redlock([client], { retryCount: -1 });
redlock.on('error', () => {}); // it reports every refusal

async function uncontended() {
  const times = [];
  const start = now();
  while (now() - start < seconds * 1e3) {
    const began = now();
    await (await redlock.acquire([PREFIX], LEASE_MS)).release();
    times.push((now() - began) * 1e3);
  }
  const took = (now() - start) / 1e3;
  times.sort((a, b) => a - b);
  const quantile = (share) => times[Math.round((times.length - 1) * share)];
  return { pairs_per_s: times.length / took, p50_us: quantile(0.5), p99_us: quantile(0.99) };
}

async function own() {
  let pairs = 0;
  const start = now();
  await Promise.all(Array.from({ length: workers }, async (_, worker) => {
    while (now() - start < seconds * 1e3) {
      await (await redlock.acquire([`${PREFIX}:${worker}`], LEASE_MS)).release();
      pairs++;
    }
  }));
  return { pairs_per_s: pairs / ((now() - start) / 1e3) };
}

async function one() {
  const grants = Array(workers).fill(0);
  let [switches, last, longest, over] = [0, -1, 0, false];
  const start = now();
  const work = async (worker) => {
    while (!over) {
      const asked = now();
      const lock = await redlock.acquire([PREFIX], LEASE_MS);
      if (!over) {
        grants[worker]++;
        switches += last !== worker;
        last = worker;
        longest = Math.max(longest, now() - asked);
      }
      await lock.release();
    }
  };
  for (let worker = 0; worker < workers; worker++) {
    work(worker).catch((error) => { console.error(error); process.exit(1); });
  }
  await sleep(seconds * 1e3);
  over = true;
  const took = (now() - start) / 1e3;
  return {
    pairs_per_s: grants.reduce((a, b) => a + b) / took,
    switches_per_s: switches / took,
    least: Math.min(...grants),
    most: Math.max(...grants),
    longest_wait_ms: longest,
  };
}

async function drain() {
  const holder = await redlock.acquire([PREFIX], LEASE_MS);
  const all = Array.from({ length: workers }, async () => {
    await (await redlock.acquire([PREFIX], LEASE_MS)).release();
  });
  await sleep(1000);
  const start = now();
  await holder.release();
  await Promise.all(all);
  return { drain_ms: now() - start };
}

({ uncontended, own, one, drain })[task]().then((figures) => {
  console.log(JSON.stringify(figures));
  process.exit(0);
}, (error) => {
  console.error(error);
  process.exit(1);
});
