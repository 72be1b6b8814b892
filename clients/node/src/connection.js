import net from "node:net";

import { Disconnected, ErrorReply } from "./errors.js";
import { afterReading } from "./interrupt.js";

/** The limit, in ms, for replies that do not wait for a lock. The agent itself answers within about two seconds. */
export const REPLY_LIMIT = 10_000;

const INCOMPLETE = Symbol("incomplete");

class Push {
  constructor(words) {
    this.words = words;
  }
}

/** Parses RESP2 and RESP3 data as it arrives. */
class Parser {
  #buffer = Buffer.alloc(0);
  #at = 0;

  /** Returns the values that are complete with these bytes. */
  feed(data) {
    this.#buffer = this.#buffer.length === 0 ? data : Buffer.concat([this.#buffer, data]);
    const values = [];
    let done = (this.#at = 0);
    try {
      while (this.#at < this.#buffer.length) {
        values.push(this.#value());
        done = this.#at;
      }
    } catch (error) {
      if (error !== INCOMPLETE) throw error;
    }
    this.#buffer = this.#buffer.subarray(done);
    return values;
  }

  #line() {
    const end = this.#buffer.indexOf("\r\n", this.#at);
    if (end < 0) throw INCOMPLETE;
    const line = this.#buffer.toString("utf8", this.#at, end);
    this.#at = end + 2;
    return line;
  }

  #value() {
    const line = this.#line();
    const rest = line.slice(1);
    switch (line[0]) {
      case "+":
        return rest;
      case "-":
        return new ErrorReply(rest);
      case ":":
      case ",":
        return Number(rest);
      case "_":
        return null;
      case "#":
        return rest === "t";
    }
    const size = Number(rest);
    if (size < 0) return null;
    const items = (count) => Array.from({ length: count }, () => this.#value());
    switch (line[0]) {
      case "$": {
        const end = this.#at + size;
        if (this.#buffer.length < end + 2) throw INCOMPLETE;
        const text = this.#buffer.toString("utf8", this.#at, end);
        this.#at = end + 2;
        return text;
      }
      case "%":
        return Object.fromEntries(Array.from({ length: size }, () => items(2)));
      case "*":
      case "~":
        return items(size);
      case ">":
        return new Push(items(size));
    }
    throw new Error(`the agent sent an unknown type: ${line}`);
  }
}

function encode(words) {
  return `*${words.length}\r\n${words.map((word) => `$${Buffer.byteLength(String(word))}\r\n${word}\r\n`).join("")}`;
}

/** Returns the first command of a connection. It names the connection as `LOCKSCOPE_NAME` says. */
function hello() {
  const name = (process.env.LOCKSCOPE_NAME ?? "").replace(/[^!-~]/g, "").slice(0, 100);
  return name ? ["HELLO", 3, "SETNAME", name] : ["HELLO", 3];
}

/**
 * A socket that a failed write does not destroy, because the agent may have sent its reason before it closed the connection.
 * The reader finds that end, after the reason. Nothing is written any more.
 */
class AgentSocket extends net.Socket {
  _write(bytes, encoding, written) {
    super._write(bytes, encoding, (error) => error || written());
  }

  _writev(parts, written) {
    super._writev(parts, (error) => error || written());
  }
}

/** A connection whose replies arrive in the order of its commands. */
export class Connection {
  closed = false;
  #lost = "connection to the agent lost";
  #socket;
  #parser = new Parser();
  #replies = [];
  #onPush;
  #onClose;

  constructor(socket, onPush, onClose) {
    this.#socket = socket;
    this.#onPush = onPush;
    this.#onClose = onClose;
    socket.on("data", (data) => this.#read(data));
    socket.on("end", () => socket.destroy());
    socket.on("error", () => {}); // "close" follows.
    socket.on("close", () => this.#end());
  }

  static open(path, onPush = () => {}, onClose = () => {}) {
    return new Promise((resolve, reject) => {
      const socket = new AgentSocket().connect({ path });
      socket.once("error", reject);
      socket.once("connect", () => {
        const connection = new Connection(socket, onPush, onClose);
        // An agent that refuses gives its reason in place of the reply, and ends the connection.
        connection.send(...hello()).catch((error) => {
          if (error instanceof ErrorReply) connection.#lost += `: ${error.message}`;
        });
        resolve(connection);
      });
    });
  }

  /** Sends a command. Returns a promise of its reply. */
  send(...words) {
    if (this.closed) return Promise.reject(new Disconnected("closed"));
    const bytes = encode(words); // This throws on a word that cannot be a string, before a reply is expected.
    return new Promise((resolve, reject) => {
      this.#replies.push({ resolve, reject });
      this.#socket.write(bytes);
    });
  }

  /** Sends a command and waits for its reply. Closes the connection if no reply arrives in time. */
  async call(...words) {
    const reply = this.send(...words);
    let answered = false;
    const overdue = () => answered || this.abort();
    const timer = setTimeout(() => afterReading(overdue), REPLY_LIMIT);
    try {
      return await reply;
    } finally {
      answered = true;
      clearTimeout(timer);
    }
  }

  /** Ends the session at the agent, waits for that for up to a second, and closes the connection. */
  async quit() {
    const timer = setTimeout(() => this.abort(), 1000);
    await this.send("QUIT").catch(() => {});
    clearTimeout(timer);
    this.abort();
  }

  abort() {
    this.#socket.destroy();
  }

  /** Sets whether the open connection keeps the process from ending. */
  keepsProcess(keeps) {
    if (keeps) this.#socket.ref();
    else this.#socket.unref();
  }

  #read(data) {
    let values;
    try {
      values = this.#parser.feed(data);
    } catch {
      this.abort();
      return;
    }
    for (const value of values) {
      if (value instanceof Push) this.#onPush(value.words);
      else if (value instanceof ErrorReply) this.#replies.shift()?.reject(value);
      else this.#replies.shift()?.resolve(value);
    }
  }

  #end() {
    this.closed = true;
    this.#onClose(this);
    for (const { reject } of this.#replies.splice(0)) reject(new Disconnected(this.#lost));
  }
}

/** Runs one command on a separate connection. */
export async function callOnce(path, ...words) {
  const connection = await Connection.open(path);
  try {
    return await connection.call(...words);
  } finally {
    connection.abort();
  }
}
