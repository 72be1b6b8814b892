// The page's event stream. It is open while the page is visible, is shared by the tabs that show the same page, and is
// opened again with growing pauses when it is lost. `live.js` handles the events.
//
// Browsers allow six connections to one host, and a page that waits for a seventh never loads. So no more than PLACES
// streams are open in one browser. A page without a place opens a stream about every GLANCE, reads only its first event,
// which has everything, and takes a place when one is free.
"use strict";
Lockscope.stream = (() => {
  const { byId, duration, setText } = Lockscope;
  const body = document.body;
  const url = body.dataset.live;
  // A connection that is silent for longer is lost: the dashboard sends something every 5 s.
  const SILENCE = 12000;
  const PLACES = 4;
  const GLANCE = 4000;

  let receive = () => {};
  let source = null;
  // The instant from which the page is. The connection counts as silent since `heard`, which is later when it was opened later.
  let shownAt = Date.now();
  let heard = shownAt;
  let lostAt = null;
  let attempt = 0;
  let retry = 0;
  let updated = false;
  let refusal = "";
  let unsent = false;

  function take(text) {
    heard = Date.now();
    lostAt = null;
    refusal = "";
    attempt = 0;
    const patch = JSON.parse(text);
    if (patch.build && patch.build !== document.documentElement.dataset.build) {
      stop();
      updated = true;
    } else {
      receive(patch);
      shownAt = heard - (patch.unread ?? 0);
      if (patch.unread !== undefined) {
        lostAt = shownAt;
        refusal = "the history cannot be read now";
      }
    }
    showLoss();
  }

  // --- Our own connection.
  function open() {
    clearTimeout(retry);
    close();
    heard = Date.now();
    source = new EventSource(url);
    source.addEventListener("patch", (event) => tell(event.data));
    source.addEventListener("error", () => {
      if (source?.readyState === EventSource.CLOSED) askWhy();
      lose();
    });
  }

  function close() {
    source?.close();
    source = null;
  }

  // --- Places: locks of the browser, each held by a page for as long as its stream is open.
  let leave = null;
  let glancing = null;
  let round = 0;

  // Resolves to a function that frees the place found, or to null if all places are taken.
  async function findPlace() {
    for (let i = 0; i < PLACES; i++) {
      const free = await new Promise((answer) => {
        const take = (place) => (place ? new Promise((resolve) => answer(resolve)) : answer(null));
        navigator.locks.request(`lockscope place ${i}`, { ifAvailable: true }, take).catch(() => answer(null));
      });
      if (free) return free;
    }
    return null;
  }

  async function begin() {
    const mine = ++round;
    const free = await findPlace();
    if (mine !== round) {
      free?.();
    } else if (free) {
      leave = free;
      open();
    } else {
      await glance();
      if (mine === round) retry = setTimeout(begin, GLANCE * (0.75 + Math.random() / 2));
    }
  }

  // Reads the first event of a stream, and closes the stream.
  async function glance() {
    const request = glancing = new AbortController();
    const timer = setTimeout(() => request.abort(), GLANCE);
    try {
      const answer = await ask(request.signal);
      const why = await reasonOf(answer);
      if (why || !answer.ok) throw new Error(why);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ;) {
        const { value, done } = await reader.read();
        if (done) throw new Error("");
        text += value;
        const data = /^data: (.*)\n\n/m.exec(text)?.[1];
        if (data === undefined) continue;
        tell(data);
        break;
      }
    } catch (error) {
      // A page that was hidden meanwhile has lost nothing.
      if (glancing === request) {
        if (error.name !== "AbortError") refusal = error.message.startsWith("Failed") ? "" : error.message;
        lostAt ??= heard;
        showLoss();
      }
    }
    clearTimeout(timer);
    request.abort();
  }

  function tell(data) {
    channel?.postMessage({ patch: data });
    take(data);
  }

  // A redirect is not followed: the login of another site may not be read.
  const ask = (signal) => fetch(url, { signal, redirect: "manual" });

  // Returns the reason of an answer that is no stream, or an empty text if it has none.
  async function reasonOf(answer) {
    const kind = answer.headers.get("content-type") ?? "";
    if (kind.startsWith("text/event-stream")) return "";
    const detail = kind.includes("json") ? (await answer.json()).detail : "";
    if (detail) return answer.status === 401 ? "your login is over, so load this page again" : detail;
    // A proxy in front of the dashboard redirects to its login, or shows it.
    const wantsLogin = answer.type === "opaqueredirect" || [200, 401, 403].includes(answer.status);
    return wantsLogin ? "the proxy asks for a login, so load this page again" : "";
  }

  // Asks for the reason of a refusal, such as too many streams, which an event source does not report.
  async function askWhy() {
    const request = new AbortController();
    try {
      refusal = await reasonOf(await ask(request.signal));
    } catch {
      refusal = "";
    }
    request.abort();
    showLoss();
  }

  // Tries again later. The browser itself would not do so after an answer such as 503, nor with growing pauses.
  function lose() {
    close();
    lostAt ??= heard;
    clearTimeout(retry);
    const pause = Math.min(30000, 500 * 2 ** attempt++);
    retry = setTimeout(open, pause * (0.5 + Math.random()));
    showLoss();
  }

  // --- One connection for all tabs of the same page: the tab that holds the lock leads, and passes on what arrives.
  // Browsers allow only a few connections to one host. Where there are no such locks (without TLS), each tab has its own
  // connection.
  let channel = null;
  let turn = null;
  let resign = null;
  const leads = () => resign !== null || !channel;

  function start() {
    if (!url || document.hidden || updated) return;
    stop();
    heard = Date.now();
    if (!navigator.locks || typeof BroadcastChannel === "undefined") {
      open();
      return;
    }
    const name = `lockscope ${url}`;
    channel = new BroadcastChannel(name);
    channel.addEventListener("message", ({ data }) => {
      if (data.patch && !leads()) take(data.patch);
      // A new tab needs everything, which is what a stream begins with.
      if (data.hello && leads() && leave) open();
    });
    turn = new AbortController();
    const lead = () => new Promise((resolve) => {
      resign = resolve;
      begin();
    });
    navigator.locks.request(name, { signal: turn.signal }, lead).catch(() => {});
    channel.postMessage({ hello: true });
  }

  function stop() {
    clearTimeout(retry);
    close();
    round++;
    glancing?.abort();
    leave?.();
    turn?.abort();
    resign?.();
    channel?.close();
    [leave, glancing, turn, resign, channel] = [null, null, null, null, null];
  }

  // --- The notice of a lost connection. Only its reason is in the live region: a screen reader would read out the age, which
  // changes, every second.
  const lossBox = byId("lost");
  const [lossReason, lossAge] = lossBox.querySelectorAll("span");
  function showLoss() {
    // A connection that is restored at once is not worth an alarm.
    lossBox.hidden = !updated && !unsent && (lostAt === null || Date.now() - lostAt < 3000);
    body.classList.toggle("cut-off", !lossBox.hidden);
    if (lossBox.hidden) return;
    const reason = updated
      ? "The dashboard has been updated. Reload this page to continue."
      : unsent
        ? "Nothing was sent: the proxy asks for a login, so load this page again."
        : refusal
          ? `No live updates: ${refusal}.`
          : "No connection to the dashboard. Trying again.";
    setText(lossReason, `▲ ${reason}`);
    setText(lossAge, `This page shows what was known ${duration(Date.now() - shownAt)} ago.`);
  }

  Lockscope.eachSecond(() => {
    if (url && !document.hidden && !updated) {
      const at = Date.now();
      if (at - heard > SILENCE && leads() && source) lose();
      // A tab that was hidden shows an old state until its first event, and a leading tab that is frozen passes on nothing.
      else if (at - shownAt > SILENCE) lostAt ??= heard;
    }
    showLoss();
  });

  // Pages may not send forms to other sites. So a form stays unsent, without a word, if a proxy redirects it to its login.
  document.addEventListener("securitypolicyviolation", ({ effectiveDirective }) => {
    unsent ||= effectiveDirective === "form-action";
    showLoss();
  });

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      stop();
      lostAt = null;
    } else {
      start();
      Lockscope.tick();
    }
  });
  addEventListener("pageshow", (event) => { if (event.persisted) start(); });
  addEventListener("pagehide", stop);

  return { begin: (listener) => { receive = listener; start(); } };
})();
