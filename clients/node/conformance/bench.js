// Measures this library: `node bench.js uncontended|one WORKERS SECONDS` prints one line of JSON.
//
// `uncontended` is one worker that acquires and releases a free lock, `one` is many workers that compete for one lock.
import { Agent } from "../src/index.js";

const [task, workers, seconds] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const name = `bench:${process.pid}`;
const agent = new Agent();
const start = performance.now();
const end = start + seconds * 1000;

async function uncontended() {
  const times = [];
  for (let began; (began = performance.now()) < end; ) {
    await (await agent.lock(name)).release();
    times.push((performance.now() - began) * 1000);
  }
  times.sort((a, b) => a - b);
  const quantile = (share) => times[Math.floor((times.length - 1) * share)];
  return { p50_us: quantile(0.5), p99_us: quantile(0.99) };
}

async function one() {
  let [switches, last] = [0, -1];
  const work = async (worker) => {
    const owner = agent.owner();
    while (performance.now() < end) {
      const hold = await owner.lock(name);
      if (last !== worker) switches += 1;
      last = worker;
      await hold.release();
    }
  };
  await Promise.all(Array.from({ length: workers }, (_, worker) => work(worker)));
  return { switches_per_s: (switches / (performance.now() - start)) * 1000 };
}

console.log(JSON.stringify(await (task === "one" ? one() : uncontended())));
await agent.close();
