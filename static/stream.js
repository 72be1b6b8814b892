// The page's event stream: opened while the page is visible, shared by the tabs that show the same page, opened anew
// with growing pauses when it is lost. `live.js` says what to do with what comes.
"use strict";
Lockscope.stream = (() => {
  const { byId, duration, setText } = Lockscope;
  const body = document.body;
  const url = body.dataset.live;
  // A silence longer than this is a lost connection: the dashboard sends something each 5 s.
  const SILENCE = 12000;

  let receive = () => {};
  let source = null;
  let heard = Date.now();
  let lostAt = null;
  let attempt = 0;
  let retry = 0;
  let updated = false;
  let refusal = "";

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
    }
    showLoss();
  }

  // --- Our own connection.
  function open() {
    clearTimeout(retry);
    close();
    heard = Date.now();
    source = new EventSource(url);
    source.addEventListener("patch", (event) => {
      channel?.postMessage({ patch: event.data });
      take(event.data);
    });
    source.addEventListener("error", () => {
      if (source?.readyState === EventSource.CLOSED) askWhy();
      lose();
    });
  }

  function close() {
    source?.close();
    source = null;
  }

  // An event source does not tell why it was refused: there may be too many of them.
  async function askWhy() {
    const request = new AbortController();
    try {
      const answer = await fetch(url, { signal: request.signal });
      refusal = answer.ok ? "" : (await answer.json()).detail ?? "";
    } catch {
      refusal = "";
    }
    request.abort();
    showLoss();
  }

  // The browser would try again by itself, but not after an answer such as 503, and with no growing pauses.
  function lose() {
    close();
    lostAt ??= heard;
    clearTimeout(retry);
    const pause = Math.min(30000, 500 * 2 ** attempt++);
    retry = setTimeout(open, pause * (0.5 + Math.random()));
    showLoss();
  }

  // --- One connection for all tabs of the same page: whoever has the lock leads, and passes on what comes. Browsers
  // allow but few connections to one host. Where there are no such locks (without TLS), each tab has its own.
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
      // Somebody new needs everything: what a stream begins with.
      if (data.hello && leads()) open();
    });
    turn = new AbortController();
    const lead = () => new Promise((resolve) => {
      resign = resolve;
      open();
    });
    navigator.locks.request(name, { signal: turn.signal }, lead).catch(() => {});
    channel.postMessage({ hello: true });
  }

  function stop() {
    clearTimeout(retry);
    close();
    turn?.abort();
    resign?.();
    channel?.close();
    [turn, resign, channel] = [null, null, null];
  }

  // --- What is said when nothing comes.
  const lossBox = byId("lost");
  function showLoss() {
    const away = lostAt === null ? 0 : Date.now() - lostAt;
    const text = updated
      ? "The dashboard has been updated. Load this page again to go on."
      : refusal
        ? `No live updates: ${refusal}. This page shows what was known ${duration(away)} ago.`
        : `No connection to the dashboard for ${duration(away)}. This page shows what was known then. Trying again.`;
    // A connection that comes back at once is not worth an alarm.
    lossBox.hidden = !updated && away < 3000;
    body.classList.toggle("cut-off", !lossBox.hidden);
    if (!lossBox.hidden) setText(lossBox.firstElementChild, `▲ ${text}`);
  }

  Lockscope.eachSecond(() => {
    if (url && !document.hidden && !updated && Date.now() - heard > SILENCE) {
      // A tab that leads may have been frozen: its followers look for themselves then.
      if (leads() && source) lose();
      else lostAt ??= heard;
    }
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
