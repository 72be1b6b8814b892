// A worker that keeps its lock across broken connections, agent restarts and its own restarts.
// Needs ioredis. LOCKSCOPE_SOCKET is the agent's socket, WORKER_TICKET the file with its session's id and secret.
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
// Converts a map, which arrives as a list: name, value, name, value.
const map = (list) => Object.fromEntries(list.flatMap((name, i) => (i % 2 ? [] : [[name, list[i + 1]]])));

// Exits at once: nothing may continue to work under the lock.
function lost(why) {
  say(`lost: ${why}`);
  process.exit(LOST);
}

function connect() {
  const agent = new Redis({ path: SOCKET, retryStrategy: null, maxRetriesPerRequest: 0 });
  agent.on('error', () => {}); // the pending command reports it
  return agent;
}

class Session {
  holds = {}; // lock: hold count
  calm = Promise.resolve(); // not resolved while a hold is at risk (jeopardy)
  calmDown = () => {}; // resolves it
  ended = false;
  ticket = fs.existsSync(TICKET) ? JSON.parse(fs.readFileSync(TICKET, 'utf8')) : null;

  async begin() {
    await this.recover();
    this.listen();
    return this;
  }

  // Resumes the session on a new connection. Concurrent callers wait for the same attempt.
  recover() {
    this.recovering ??= this.resume().finally(() => { this.recovering = null; });
    return this.recovering;
  }

  async resume() {
    for (const deadline = Date.now() + GRACE; ; await sleep(100)) {
      const agent = connect();
      try {
        const reply = map(this.ticket ? await agent.call('RESUME', ...this.ticket) : await agent.call('SESSION', 'GRACE', GRACE));
        if (this.ticket) say('resumed');
        this.ticket = [reply.id, reply.secret];
        fs.writeFileSync(`${TICKET}.new`, JSON.stringify(this.ticket), { mode: 0o600 });
        fs.renameSync(`${TICKET}.new`, TICKET); // a reader never finds half a ticket
        const now = Object.fromEntries((reply.holds || []).map(map).map((row) => [row.lock, row.holds]));
        if (Object.entries(this.holds).some(([name, count]) => count > 0 && !now[name])) lost('it was not there any more');
        this.calmDown(); // another agent sends no `safe` for its predecessor's `jeopardy`
        this.holds = now;
        this.agent = agent;
        agent.once('end', () => this.ended || this.recover());
        return;
      } catch (error) {
        agent.disconnect();
        if (code(error) === 'GONE') {
          if (Object.values(this.holds).some((count) => count > 0)) lost('the session has ended');
          this.ticket = null;
        } else if (!['SESSION', 'UNAVAILABLE', 'BROKEN'].includes(code(error))) {
          throw error;
        } else if (Date.now() > deadline) {
          lost(error.message);
        }
      }
    }
  }

  // Returns no reply if the connection broke and the session was resumed: check `holds` and repeat the command.
  async call(...words) {
    try {
      return { reply: await this.agent.call(...words) };
    } catch (error) {
      if (code(error) !== 'BROKEN') throw error;
      await this.recover();
      return null;
    }
  }

  // Acquires or reenters the lock. False if it could not be acquired in time.
  async lock(name, ms) {
    const wanted = (this.holds[name] || 0) + 1;
    while ((this.holds[name] || 0) < wanted) {
      const answer = await this.call('LOCK', name, 'WAIT', ms, 'IN', this.ticket[0]).catch((error) => {
        if (code(error) !== 'DRAINING') throw error;
        return sleep(100); // the next agent grants it
      });
      if (!answer) continue;
      if (answer.reply === null) return false;
      this.holds[name] = map(answer.reply).holds;
    }
    return true;
  }

  async unlock(name) {
    const wanted = this.holds[name] - 1;
    while ((this.holds[name] || 0) > wanted) {
      this.holds[name] = wanted; // from here on a loss of the lock does not matter
      await this.call('UNLOCK', name, 'IN', this.ticket[0]).catch((error) => {
        if (code(error) !== 'UNAVAILABLE') throw error; // released: the agent keeps trying until Redis confirms it
      });
    }
  }

  // Replies keep the commands' order, so events need a separate connection.
  async listen() {
    let ear = connect();
    while (!this.ended) {
      let events;
      try {
        events = await ear.call('EVENTS', ...this.ticket, 'WAIT', 60_000);
      } catch (error) {
        await sleep(100); // resumed meanwhile, with a new secret; or the agent is away
        if (code(error) === 'BROKEN') {
          ear.disconnect();
          ear = connect();
        }
        continue;
      }
      for (const [what, ...rest] of events) {
        if (what === 'jeopardy') {
          say('jeopardy');
          this.calm = new Promise((resolve) => { this.calmDown = resolve; });
        } else if (what === 'safe') {
          this.calmDown();
        } else if (what === 'lost') {
          lost(rest.at(-1));
        }
      }
    }
  }
}

// Called with and without the lock: it reenters the lock, which is always safe.
async function checkStock(session) {
  await session.lock(LOCK, 60_000);
  await session.unlock(LOCK);
}

async function main() {
  const session = await new Session().begin();
  if (!session.holds[LOCK] && !(await session.lock(LOCK, 60_000))) {
    throw new Error(`could not acquire ${LOCK} within a minute`);
  }
  say(`working on ${LOCK}`);
  for await (const order of readline.createInterface({ input: process.stdin })) {
    await session.calm; // start nothing new while the lock is at risk
    await checkStock(session);
    say(`did ${order}`);
  }
  await session.unlock(LOCK);
  session.ended = true;
  await session.agent.quit().catch(() => {}); // nothing is held any more, so a broken connection does no harm
  fs.unlinkSync(TICKET);
  say('done');
  process.exit(0);
}
main();
