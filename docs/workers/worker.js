// A worker that keeps its lock over broken connections, the agent's restarts and its own. Orders come line by line.
// Needs ioredis. LOCKSCOPE_SOCKET is the agent's socket, WORKER_TICKET the file that lets it come back to its session.
const fs = require('fs');
const readline = require('readline');
const Redis = require('ioredis');

const SOCKET = process.env.LOCKSCOPE_SOCKET || '/run/lockscope/agent.sock';
const TICKET = process.env.WORKER_TICKET || 'worker.ticket';
const LOCK = 'orders:42';
const GRACE = 60_000; // ms
const LOST = 76; // exit status

const say = (text) => fs.writeSync(1, `${text}\n`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const code = (error) => (error.name === 'ReplyError' ? error.message.split(' ')[0] : 'BROKEN');
// A map comes as a list: name, value, name, value.
const map = (list) => Object.fromEntries(list.flatMap((name, i) => (i % 2 ? [] : [[name, list[i + 1]]])));

// Nothing more may be done under the lock, whatever else goes on.
function lost(why) {
  say(`lost: ${why}`);
  process.exit(LOST);
}

function connect() {
  const agent = new Redis({ path: SOCKET, retryStrategy: null, maxRetriesPerRequest: 0 });
  agent.on('error', () => {}); // whoever asked something hears of it
  return agent;
}

class Session {
  holds = {}; // lock: how often it is held
  calm = Promise.resolve(); // not resolved while a hold is in jeopardy
  ended = false;
  ticket = fs.existsSync(TICKET) ? JSON.parse(fs.readFileSync(TICKET, 'utf8')) : null;

  async begin() {
    await this.recover();
    this.listen();
    return this;
  }

  // Goes on over a new connection. Whoever comes while that is under way waits for the same one.
  recover() {
    this.recovering ??= this.resume().finally(() => { this.recovering = null; });
    return this.recovering;
  }

  async resume() {
    for (const deadline = Date.now() + GRACE; ; await sleep(100)) {
      const agent = connect();
      try {
        const told = map(this.ticket ? await agent.call('RESUME', ...this.ticket) : await agent.call('SESSION', 'GRACE', GRACE));
        if (this.ticket) say('resumed');
        this.ticket = [told.id, told.secret];
        fs.writeFileSync(TICKET, JSON.stringify(this.ticket), { mode: 0o600 });
        const now = Object.fromEntries((told.holds || []).map(map).map((row) => [row.lock, row.holds]));
        if (Object.entries(this.holds).some(([name, count]) => count > 0 && !now[name])) lost('it was not there any more');
        this.holds = now;
        this.agent = agent;
        agent.once('end', () => this.ended || this.recover());
        return;
      } catch (error) {
        agent.disconnect();
        if (code(error) === 'GONE') {
          if (Object.keys(this.holds).length) lost('the session has ended');
          this.ticket = null;
        } else if (!['SESSION', 'UNAVAILABLE', 'BROKEN'].includes(code(error))) {
          throw error;
        } else if (Date.now() > deadline) {
          lost(error.message);
        }
      }
    }
  }

  // Nothing where the connection broke: the session goes on over another one; look at `holds` and ask again.
  async call(...words) {
    try {
      return { reply: await this.agent.call(...words) };
    } catch (error) {
      if (code(error) !== 'BROKEN') throw error;
      await this.recover();
      return null;
    }
  }

  // Takes it, or once more. False when it was not to be had in time.
  async lock(name, ms) {
    const wanted = (this.holds[name] || 0) + 1;
    while ((this.holds[name] || 0) < wanted) {
      const answer = await this.call('LOCK', name, 'WAIT', ms, 'IN', this.ticket[0]);
      if (!answer) continue;
      if (answer.reply === null) return false;
      this.holds[name] = map(answer.reply).holds;
    }
    return true;
  }

  async unlock(name) {
    const wanted = this.holds[name] - 1;
    while ((this.holds[name] || 0) > wanted) {
      this.holds[name] = wanted; // from here on a loss is no loss any more
      await this.call('UNLOCK', name, 'IN', this.ticket[0]);
    }
  }

  // Replies keep the commands' order, so events have a connection of their own.
  async listen() {
    let ear = connect();
    let isSafe;
    while (!this.ended) {
      let events;
      try {
        events = await ear.call('EVENTS', ...this.ticket, 'WAIT', 60_000);
      } catch (error) {
        await sleep(100); // resumed meanwhile: there is another secret; or the agent is away
        if (code(error) === 'BROKEN') {
          ear.disconnect();
          ear = connect();
        }
        continue;
      }
      for (const [what, ...rest] of events) {
        if (what === 'jeopardy') {
          say('jeopardy');
          this.calm = new Promise((resolve) => { isSafe = resolve; });
        } else if (what === 'safe') {
          isSafe?.();
        } else if (what === 'lost') {
          lost(rest.at(-1));
        }
      }
    }
  }
}

// Called under the lock, and elsewhere without: it takes the lock once more, which does no harm.
async function checkStock(session) {
  await session.lock(LOCK, 60_000);
  await session.unlock(LOCK);
}

async function main() {
  const session = await new Session().begin();
  if (!session.holds[LOCK] && !(await session.lock(LOCK, 60_000))) {
    throw new Error(`${LOCK} was not to be had within a minute`);
  }
  say(`working on ${LOCK}`);
  for await (const order of readline.createInterface({ input: process.stdin })) {
    await session.calm; // begin nothing new while the lock is in danger
    await checkStock(session);
    say(`did ${order}`);
  }
  await session.unlock(LOCK);
  session.ended = true;
  await session.agent.quit();
  fs.unlinkSync(TICKET);
  say('done');
  process.exit(0);
}
main();
