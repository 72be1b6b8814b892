// Drives this library for the conformance suite, by commands on standard input.
//
// Reads one command per line: `<tag> <task> <verb> <arguments>`. A task is an owner, which runs its commands one after
// another. Answers `<tag> <JSON>`; a loss and a warning are reported as `event <JSON>`. The verbs:
//
//     lock <handle> <name>[,<name>…] [wait=<ms>] [lease=<ms>] [kind=<kind>]
//     check <handle> | release <handle> | extend <handle> <ms>
//     part <handle>    releases the first of several; the handle is that of the rest
//     spoil <handle>   adds listeners that throw
//     misname          locks under names that cannot be sent, and with limits that are no numbers
//     graced <ms>      locks and releases with another agent object, of this grace
//     block <ms>       blocks the event loop, after an event that says so
//     close            closes the agent object
//     many <count>   one lock for each of that many tasks; `unmany` releases them
//     share <name> <count>   waits that many times with one signal
//     listen <handle> <count>   adds that many listeners to the signal of the hold
//     abort <name> <count>   aborts that many waits, each one microtask later than the previous
//     cancel <tag>   cancels a command
import readline from "node:readline";

import { Agent, LockLostError, LockTimeoutError, RejectedError, UnavailableError } from "../src/index.js";

const agent = new Agent({ grace: Number(process.env.GRACE_MS ?? 60_000) });
const holds = new Map();
const tasks = new Map();
const cancels = new Map();
let many = [];

const warnings = [];
process.on("warning", ({ message }) => warnings.push(message));

const say = (tag, value) => process.stdout.write(`${tag} ${JSON.stringify(value)}\n`);

function failure(error) {
  const text = error.message;
  if (error instanceof LockTimeoutError) return { error: "timeout", text };
  if (error instanceof LockLostError) return { error: "lost", text };
  if (error instanceof UnavailableError) return { error: "unavailable", text };
  if (error instanceof RejectedError) return { error: error.code, text };
  if (error.name === "AbortError") return { error: "cancelled", text };
  throw error;
}

function fails() {
  throw new Error("it fails");
}

// An exception from a listener is uncaught, which ends a program that does not handle it.
process.on("uncaughtException", (error) => say("event", { uncaught: error.message }));

const members = (hold) => hold.all ?? [hold];

function describe(hold) {
  const holder = members(hold).map((member) => member.holder).join(",");
  return { token: members(hold)[0].token, holder, remaining: Math.floor(hold.remaining) };
}

function options(words) {
  const given = Object.fromEntries(words.map((word) => word.split("=")));
  for (const name of ["wait", "lease"]) if (name in given) given[name] = Number(given[name]);
  return given;
}

async function gather(promises) {
  const ended = await Promise.allSettled(promises);
  return { errors: ended.filter(({ reason }) => reason).map(({ reason }) => String(reason)) };
}

const verbs = {
  async lock({ owner, signal }, handle, name, ...words) {
    const names = name.split(",");
    const given = { ...options(words), signal };
    const hold = await (names.length > 1 ? owner.lockAll(names, given) : owner.lock(name, given));
    holds.set(handle, hold);
    hold.signal.addEventListener("abort", () => say("event", { lost: handle, reason: hold.signal.reason.reason }));
    for (const member of members(hold)) member.onRisk(() => say("event", { risk: handle }));
    return describe(hold);
  },
  async check(_, handle) {
    holds.get(handle).check();
    return describe(holds.get(handle));
  },
  async release(_, handle) {
    await holds.get(handle).release();
    return {};
  },
  async extend(_, handle, ms) {
    await holds.get(handle).extend(Number(ms));
    return describe(holds.get(handle));
  },
  async part(_, handle) {
    const [first, ...rest] = members(holds.get(handle));
    await first.release();
    holds.set(handle, rest[0]);
    return {};
  },
  async spoil(_, handle) {
    holds.get(handle).signal.addEventListener("abort", fails);
    holds.get(handle).onRisk(fails);
    return {};
  },
  async misname({ owner }) {
    const mistakes = [
      ...[undefined, {}, "\ud800"].map((name) => owner.lock(name)),
      ...["abc", ["a", 5]].map((names) => owner.lockAll(names)),
      ...["5", null, NaN].flatMap((ms) => [owner.lock("a", { wait: ms }), owner.lockAll(["a"], { lease: ms })]),
    ];
    const ended = await Promise.allSettled(mistakes);
    if (!ended.every(({ reason }) => reason instanceof TypeError)) return { accepted: true };
    return { error: ended.map(({ reason }) => reason.message).join() };
  },
  async graced(_, ms) {
    const other = new Agent({ grace: Number(ms) });
    try {
      await other.withLock("graced", (hold) => hold.check());
      await other.withLock("graced", { wait: 60_000 }, (hold) => hold.check());
    } finally {
      await other.close();
    }
    return {};
  },
  async block(_, ms) {
    say("event", { blocks: ms });
    for (const end = Date.now() + Number(ms); Date.now() < end; );
    return {};
  },
  async close() {
    await agent.close();
    return {};
  },
  many(_, count) {
    many = Array.from({ length: Number(count) }, (_, at) => agent.lock(`many:${at}`, { wait: 600_000 }));
    return gather(many);
  },
  async share({ signal }, name, count) {
    const ended = await Promise.allSettled(Array.from({ length: Number(count) }, () => agent.lock(name, { signal })));
    return { errors: ended.map(({ reason }) => reason?.name), warnings };
  },
  async listen(_, handle, count) {
    const { signal } = holds.get(handle);
    for (let more = Number(count); more > 0; more -= 1) signal.addEventListener("abort", () => {});
    await new Promise(setImmediate); // Warnings are emitted before.
    return { warnings };
  },
  async abort({ owner }, name, count) {
    const errors = [];
    for (let steps = 0; steps < Number(count); steps += 1) {
      await (await owner.lock("free")).release(); // The previous wait has been withdrawn, and the connection is open.
      const abort = new AbortController();
      const wait = owner.lock(name, { signal: abort.signal }).catch((error) => errors.push(error.name));
      for (let step = 0; step < steps; step += 1) await null;
      abort.abort();
      await wait;
    }
    return { errors };
  },
  async unmany() {
    return gather(many.map(async (hold) => (await hold).release()));
  },
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const [tag, task, verb, ...words] = line.split(" ");
  if (verb === "cancel") {
    cancels.get(words[0]).abort();
    say(tag, {});
    continue;
  }
  if (!tasks.has(task)) tasks.set(task, { owner: agent.owner(), last: Promise.resolve() });
  const { owner, last } = tasks.get(task);
  const cancel = new AbortController();
  cancels.set(tag, cancel);
  const run = async () => {
    await last;
    say(tag, await verbs[verb]({ owner, signal: cancel.signal }, ...words).catch(failure));
  };
  tasks.get(task).last = run();
}
await agent.close();
