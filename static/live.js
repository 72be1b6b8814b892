// Keeps an open page true, and counts its ages and times to live on.
//
// The page is complete without this script. With it, the page opens the stream named by `data-live` on its body and
// gets `patch` events, each a JSON object with some of
//   now      the dashboard's clock, epoch milliseconds (always)
//   full     the stream's first event: it holds everything; build: which program made it
//   title    the document's title
//   rows     {id: html}: table rows, new or changed
//   ttl      {id: [ttl_ms, observed_at]}: rows of which only that changed
//   order    [id…]: the rows in order; a row that is not named has gone
//   regions  {id: html}: the new inside of an element
// Nothing moves under the pointer: while somebody points at the rows or is among them with the keyboard, rows change
// in place, but their order, new ones and the going of old ones wait until they are applied.
"use strict";
(() => {
  const body = document.body;
  const byId = (id) => document.getElementById(id);
  const rows = byId("rows");

  // --- Clock: the dashboard's, carried on by ours, so that ours may be wrong.
  let clock = { theirs: Number(body.dataset.now), ours: Date.now() };
  const now = () => clock.theirs + Date.now() - clock.ours;

  const two = (n) => String(n).padStart(2, "0");
  function duration(millis) {
    const s = Math.max(0, Math.floor(millis / 1000));
    const m = Math.floor(s / 60);
    const h = Math.floor(s / 3600);
    if (s < 60) return `${s}s`;
    if (m < 60) return `${m}m ${two(s % 60)}s`;
    if (h < 48) return `${h}h ${two(m % 60)}m`;
    return `${Math.floor(s / 86400)}d ${h % 24}h`;
  }

  function setText(element, text) {
    if (element && element.textContent !== text) element.textContent = text;
  }

  // --- Ages, times to live and staleness, each second and after each change.
  const staleAfter = Number(body.dataset.stale);
  const RAN_OUT = "What was read has run out since; the lock has not been read again";

  function tick() {
    const at = now();
    for (const time of document.querySelectorAll("time[data-at]")) {
      setText(time, duration(at - Number(time.dataset.at)));
    }
    for (const ttl of document.querySelectorAll(".time-left")) {
      const left = Number(ttl.dataset.ttl) - (at - Number(ttl.dataset.at));
      const text = ttl.querySelector(".left");
      setText(text, left < 0 ? `over by ${duration(-left)}` : duration(left));
      text.title = left < 0 ? RAN_OUT : "";
      ttl.classList.toggle("over", left < 0);
      ttl.querySelector("progress").value = Math.max(0, left);
    }
    for (const read of document.querySelectorAll("[data-observed]")) {
      read.classList.toggle("stale", at - Number(read.dataset.observed) > staleAfter);
    }
    if (source) watchStream();
    showLoss();
  }

  // --- Changing the page in place: what is the same stays, and with it focus, selection and open boxes.
  function morph(from, to) {
    if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
      from.replaceWith(to);
      return;
    }
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.data !== to.data) from.data = to.data;
      return;
    }
    for (const { name } of [...from.attributes]) {
      if (!to.hasAttribute(name)) from.removeAttribute(name);
    }
    for (const { name, value } of to.attributes) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    morphChildren(from, to);
  }

  function morphChildren(from, to) {
    const [old, fresh] = [[...from.childNodes], [...to.childNodes]];
    for (let i = 0; i < Math.max(old.length, fresh.length); i++) {
      if (i >= fresh.length) old[i].remove();
      else if (i >= old.length) from.append(fresh[i]);
      else morph(old[i], fresh[i]);
    }
  }

  function parsed(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  }

  function flash(row, how) {
    row.classList.add(how);
    setTimeout(() => row.classList.remove(how), 1500);
  }

  // --- What has come and is not on the page yet.
  const waiting = { rows: new Map(), ttl: new Map(), order: null, regions: new Map() };
  let paused = false;
  // Names of what changed while paused.
  let missed = new Set();
  // These say whether the picture can be trusted: they never wait.
  const URGENT = ["status", "alerts", "spoken"];

  function receive(patch) {
    clock = { theirs: patch.now, ours: Date.now() };
    if (patch.title !== undefined) document.title = patch.title;
    for (const [id, html] of Object.entries(patch.rows ?? {})) {
      waiting.rows.set(id, html);
      waiting.ttl.delete(id);
      if (!patch.full) missed.add(id);
    }
    for (const [id, ttl] of Object.entries(patch.ttl ?? {})) waiting.ttl.set(id, ttl);
    if (patch.order) {
      for (const id of gone(patch.order)) missed.add(id);
      waiting.order = patch.order;
    }
    for (const [id, html] of Object.entries(patch.regions ?? {})) {
      waiting.regions.set(id, html);
      if (!patch.full && !URGENT.includes(id)) missed.add(id);
    }
    apply(false);
  }

  const shown = () => (rows ? [...rows.children] : []);
  const gone = (order) => shown().map((row) => row.id).filter((id) => !order.includes(id));

  function applyRegions(wanted) {
    for (const [id, html] of [...waiting.regions]) {
      if (!wanted(id)) continue;
      waiting.regions.delete(id);
      const element = byId(id);
      if (element) morphChildren(element, parsed(html));
    }
  }

  function applyRows() {
    for (const [id, html] of [...waiting.rows]) {
      const row = byId(id);
      if (!row) continue;
      waiting.rows.delete(id);
      const fresh = parsed(html).firstElementChild;
      const [was, is] = [row, fresh].map((r) => r.querySelector(".holder").textContent);
      morph(row, fresh);
      if (was !== is) flash(row, "changed");
    }
    for (const [id, [ttl, at]] of [...waiting.ttl]) {
      const row = byId(id);
      if (!row) continue;
      waiting.ttl.delete(id);
      row.dataset.observed = at;
      const left = row.querySelector(".time-left");
      if (left) Object.assign(left.dataset, { ttl, at });
      const read = row.querySelector(".read time");
      if (read) read.dataset.at = at;
    }
  }

  function applyOrder() {
    const focused = document.activeElement;
    const keep = new Set(waiting.order);
    const first = shown().length === 0;
    for (const row of shown()) if (!keep.has(row.id)) row.remove();
    waiting.order.forEach((id, i) => {
      let row = byId(id);
      if (!row) {
        const html = waiting.rows.get(id);
        if (html === undefined) return;
        row = parsed(html).firstElementChild;
        if (!first) flash(row, "fresh");
      }
      if (rows.children[i] !== row) rows.insertBefore(row, rows.children[i] ?? null);
    });
    waiting.order = null;
    waiting.rows.clear();
    if (focused && focused.isConnected && focused !== document.activeElement) {
      focused.focus({ preventScroll: true });
    }
  }

  function apply(forced) {
    applyRegions((id) => URGENT.includes(id));
    if (!paused) {
      missed.clear();
      if (rows) applyRows();
      if (!rows) waiting.order = null;
      const held = waiting.order && !forced && isTouched() && movesRows(waiting.order);
      if (waiting.order && !held) applyOrder();
      // The line below the rows speaks of them, so it changes with them.
      applyRegions((id) => !(held && id === "foot"));
      applyTtlOfNew();
    }
    showWaiting();
    showPause();
    tick();
  }

  // A row that was waiting may have had its time to live changed meanwhile.
  function applyTtlOfNew() {
    if (rows && waiting.ttl.size > 0) applyRows();
    if (!waiting.order) waiting.ttl.clear();
  }

  // Rows added at the end, or in an empty table, move nothing.
  function movesRows(order) {
    return shown().some((row, i) => row.id !== order[i]);
  }

  // --- Is somebody pointing at the rows, or among them?
  let lastTouch = -Infinity;
  for (const event of ["touchstart", "touchmove"]) {
    document.addEventListener(event, () => { lastTouch = performance.now(); }, { passive: true });
  }

  function isTouched() {
    if (!rows) return false;
    const selection = getSelection();
    return rows.matches(":hover")
      || rows.contains(document.activeElement)
      || (selection && !selection.isCollapsed && rows.contains(selection.anchorNode))
      || performance.now() - lastTouch < 3000;
  }

  const later = () => setTimeout(() => { if (waiting.order) apply(false); }, 150);
  if (rows) {
    rows.addEventListener("pointerleave", later);
    rows.addEventListener("focusout", later);
    document.addEventListener("touchend", () => setTimeout(later, 3000), { passive: true });
    document.addEventListener("selectionchange", later);
  }

  const waitingBox = byId("waiting");
  function showWaiting() {
    if (!waitingBox) return;
    const order = paused ? null : waiting.order;
    waitingBox.hidden = !order;
    for (const row of shown()) row.classList.toggle("gone", Boolean(order) && !order.includes(row.id));
    if (!order) return;
    const here = shown().map((row) => row.id);
    const left = gone(order);
    const come = order.filter((id) => !here.includes(id));
    const stay = order.filter((id) => here.includes(id));
    const moved = here.filter((id) => order.includes(id)).filter((id, i) => stay[i] !== id).length;
    const n = left.length + come.length + (moved > 0 ? 1 : 0);
    const parts = [];
    if (come.length) parts.push(`${come.length} new`);
    if (left.length) parts.push(`${left.length} gone`);
    if (moved) parts.push("another order");
    setText(waitingBox.querySelector("button"), `${n} ${n === 1 ? "change" : "changes"}, apply (${parts.join(", ")})`);
  }
  waitingBox?.querySelector("button").addEventListener("click", () => apply(true));

  // --- Pause.
  const pause = byId("pause");
  function showPause() {
    pause.setAttribute("aria-pressed", String(paused));
    const n = missed.size;
    const text = !paused ? "Pause" : n === 0 ? "Resume" : `Resume, ${n} missed`;
    setText(pause.querySelector(".label"), text);
    body.classList.toggle("paused", paused);
  }
  function togglePause() {
    paused = !paused;
    apply(true);
  }
  pause.addEventListener("click", togglePause);
  if (!body.dataset.live) pause.hidden = true;

  // --- The stream. A silence longer than this is a lost connection: the dashboard sends something each 5 s.
  const SILENCE = 12000;
  let source = null;
  let heard = Date.now();
  let lostAt = null;
  let attempt = 0;
  let retry = 0;

  function open() {
    clearTimeout(retry);
    close();
    if (!body.dataset.live || document.hidden) return;
    heard = Date.now();
    source = new EventSource(body.dataset.live);
    source.addEventListener("patch", (event) => {
      heard = Date.now();
      lostAt = null;
      refusal = "";
      attempt = 0;
      const patch = JSON.parse(event.data);
      if (patch.build && patch.build !== document.documentElement.dataset.build) {
        close();
        updated = true;
        showLoss();
        return;
      }
      receive(patch);
    });
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) askWhy();
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
      const answer = await fetch(body.dataset.live, { signal: request.signal });
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

  function watchStream() {
    if (Date.now() - heard > SILENCE) lose();
  }

  const lossBox = byId("lost");
  let updated = false;
  let refusal = "";
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

  // A tab nobody sees needs no stream: browsers allow but few connections to one host.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(retry);
      close();
      lostAt = null;
    } else {
      open();
      tick();
    }
  });
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  addEventListener("pagehide", close);

  showPause();
  tick();
  setInterval(tick, 1000);
  open();
})();
