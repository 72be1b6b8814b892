// Keeps an open page up to date. The page is complete without this script. With it, patches arrive over the stream named by
// `data-live` on its body, each a JSON object with some of:
//   now      the dashboard's clock, epoch milliseconds (always)
//   set      the milliseconds by which the wall clock has been set since the dashboard's start (always)
//   full     the stream's first event: it holds everything; build: which program made it
//   title    the document's title
//   rows     {id: html}: table rows, new or changed: a start tag and cells, each on a line
//   cells    {id: {line: html}}: the lines of a row that changed
//   ttl      {id: [ttl_ms or null, observed_at]}: a row's time to live as it was read
//   order    [id…]: the rows in order; a row that is not named is gone
//   regions  {id: html}: the new inside of an element
//   unread   the page's age in milliseconds, if the history that it shows cannot be read now
// Nothing moves under the pointer: while the reader points at the rows or is among them with the keyboard, rows change in
// place, but a new order, new rows and the removal of old ones wait until they are applied. Otherwise rows move at most once
// in ten seconds, unless a problem begins; even then they change in place, because all have the same height. Regions marked
// `data-calm`, which are lists of links or buttons, wait as a whole until the reader leaves them.
"use strict";
(() => {
  const { byId, setText } = Lockscope;
  const body = document.body;
  const rows = byId("rows");

  // --- Changing the page in place: unchanged parts stay, and with them focus and selection. Only the reader opens and closes
  // boxes.
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
      const readers = name === "open" && from.nodeName === "DETAILS";
      if (!readers && !to.hasAttribute(name)) from.removeAttribute(name);
    }
    for (const { name, value } of to.attributes) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    morphChildren(from, to);
  }

  function morphChildren(from, to) {
    const isBox = (node) => node?.nodeName === "DETAILS";
    const old = [...from.childNodes];
    for (const fresh of [...to.childNodes]) {
      // A box becomes the next box, whatever is between them.
      if (isBox(fresh) && old.some(isBox)) while (!isBox(old[0])) old.shift().remove();
      if (old.length === 0 || (isBox(old[0]) && !isBox(fresh))) from.insertBefore(fresh, old[0] ?? null);
      else morph(old.shift(), fresh);
    }
    for (const left of old) left.remove();
  }

  function parsed(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  }

  // --- The dashboard's latest state, and the parts of it that are not on the page yet.
  let known = new Map();
  const dirty = new Set();
  const regions = new Map();
  // What the regions show, as it arrived.
  const applied = new Map();
  // The instant of the latest state.
  let latest = null;
  let order = null;
  let paused = false;
  // The ids of rows and regions that changed while paused.
  const missed = new Set();
  let away = false;
  // These regions say whether the page can be trusted, so they are never delayed.
  const URGENT = ["health", "status", "alerts", "spoken"];

  function receive(patch) {
    Lockscope.setClock(patch.now, patch.set);
    latest = patch.now + patch.set - (patch.unread ?? 0);
    if (patch.title !== undefined) document.title = patch.title;
    const before = known;
    if (patch.full) known = new Map();
    for (const [id, html] of Object.entries(patch.rows ?? {})) {
      known.set(id, { lines: html.split("\n"), ttl: known.get(id)?.ttl });
      dirty.add(id);
      if (!patch.full) missed.add(id);
    }
    for (const [id, lines] of Object.entries(patch.cells ?? {})) {
      const row = known.get(id);
      if (!row) continue;
      for (const [i, html] of Object.entries(lines)) row.lines[Number(i)] = html;
      dirty.add(id);
      missed.add(id);
    }
    for (const [id, ttl] of Object.entries(patch.ttl ?? {})) {
      const row = known.get(id);
      if (!row) continue;
      row.ttl = ttl;
      const here = byId(id);
      stamp(here, ttl);
      if (here) changed.push(here);
    }
    if (patch.order) {
      order = patch.order;
      for (const row of shown()) if (!known.has(row.id) || !order.includes(row.id)) missed.add(row.id);
      for (const id of known.keys()) if (!order.includes(id)) known.delete(id);
    }
    for (const [id, html] of Object.entries(patch.regions ?? {})) {
      regions.set(id, html);
      if (!URGENT.includes(id) && byId(id) && applied.get(id) !== html) missed.add(id);
    }
    if (patch.full) {
      const changed = changedSince(before);
      for (const id of changed) missed.add(id);
      if (away) tellAway(changed.length);
    }
    apply(false);
  }

  const shown = () => (rows ? [...rows.children] : []);

  // Stores a row's time to live as it was read; the script counts down from there.
  function stamp(row, ttl) {
    if (!row || !ttl || paused) return;
    row.dataset.observed = ttl[1];
    if (ttl[0] === null) delete row.dataset.ttl;
    else row.dataset.ttl = ttl[0];
  }

  function made(id) {
    const { lines, ttl } = known.get(id);
    const row = parsed(lines.join("\n")).firstElementChild;
    stamp(row, ttl);
    return row;
  }

  function applyRegions(wanted, forced) {
    for (const [id, html] of [...regions]) {
      if (!wanted(id)) continue;
      const element = byId(id);
      const isNew = applied.has(id) && applied.get(id) !== html;
      const waits = isNew && !forced && element?.hasAttribute("data-calm")
        && isTouched(element, element.matches(":has(:focus-visible)"));
      element?.classList.toggle("waits", Boolean(waits));
      if (waits) continue;
      regions.delete(id);
      applied.set(id, html);
      if (!element) continue;
      // What the reader has chosen stays, or nothing is chosen.
      const chosen = element.options?.length > 0 ? element.value : null;
      morphChildren(element, parsed(html));
      if (chosen !== null) element.value = chosen;
      changed.push(element);
    }
  }

  function applyRows() {
    for (const id of [...dirty]) {
      const row = byId(id);
      if (!known.has(id)) dirty.delete(id);
      if (!row || !known.has(id)) continue;
      dirty.delete(id);
      const fine = !isWrong(row);
      morph(row, made(id));
      urgent ||= fine && isWrong(row);
      changed.push(row);
    }
  }

  // Gives each place in the table the row that belongs there. The places do not move, so nothing on the page is pushed
  // around.
  function applyOrder() {
    const focused = document.activeElement;
    const wanted = order.filter((id) => byId(id) || known.has(id));
    const here = shown();
    // Rows of a log never become other rows, and neither do rows while one of them has the focus or an open box: they are
    // moved.
    const moves = isLog || here.some((row) => row.contains(focused)) || [...rows.querySelectorAll("details")].some((box) => box.open);
    wanted.forEach((id, i) => {
      const place = rows.children[i];
      if (place?.id === id) return;
      if (place && known.has(id) && !moves) {
        morph(place, made(id));
      } else {
        const row = (moves && byId(id)) || (known.has(id) ? made(id) : byId(id));
        rows.insertBefore(row, place ?? null);
      }
      dirty.delete(id);
      changed.push(rows.children[i]);
    });
    while (rows.children.length > wanted.length) rows.lastElementChild.remove();
    order = null;
    urgent = false;
    movedAt = performance.now();
    if (focused && focused.isConnected && focused !== document.activeElement) {
      focused.focus({ preventScroll: true });
    }
  }

  function apply(forced) {
    applyRegions((id) => URGENT.includes(id));
    if (!paused) {
      missed.clear();
      if (!rows) order = null;
      if (rows) applyRows();
      touched = Boolean(order) && !forced && isTouched(rows, rows.contains(document.activeElement)) && movesRows(order);
      const held = touched || (order && !forced && waitsForFrame());
      if (order && !held) applyOrder();
      // The line below the rows describes them, so it changes with them.
      applyRegions((id) => !(held && id === "foot"), forced);
      if (latest !== null) Lockscope.setShown(latest);
    }
    showWaiting();
    showPause();
    for (const element of changed.splice(0)) Lockscope.tick(element);
  }

  // --- Calm: rows move at most once in a frame, unless a problem begins.
  const FRAME = 10000;
  const isLog = Boolean(rows?.hasAttribute("data-log"));
  const isWrong = (row) => row.classList.contains("wrong");
  // The rows that changed since times were last filled in.
  const changed = [];
  let movedAt = -Infinity;
  let urgent = false;
  let touched = false;
  let frame = 0;

  function waitsForFrame() {
    if (isLog || !movesRows(order)) return false;
    const isNew = (id) => !byId(id) && / class="[^"]*\bwrong\b/.test(known.get(id)?.lines[0] ?? "");
    if (urgent || order.some(isNew)) return false;
    const left = movedAt + FRAME - performance.now();
    clearTimeout(frame);
    if (left > 0) frame = setTimeout(() => { if (order) apply(false); }, left);
    return left > 0;
  }

  // Rows added at the end, or in an empty table, move nothing.
  const movesRows = (wanted) => shown().some((row, i) => row.id !== wanted[i]);

  // --- Detecting a reader who points at an element, or is in it with the keyboard.
  let lastTouch = -Infinity;
  // The element that was tapped last counts as hovered until another one is.
  let tapped = false;
  document.addEventListener("pointerover", (event) => { tapped = event.pointerType === "touch"; }, { passive: true });
  for (const event of ["touchstart", "touchmove"]) {
    document.addEventListener(event, () => { lastTouch = performance.now(); }, { passive: true });
  }

  function isTouched(element, hasFocus) {
    const selection = getSelection();
    return (!tapped && element.matches(":hover"))
      || hasFocus
      || (selection && !selection.isCollapsed && element.contains(selection.anchorNode))
      || performance.now() - lastTouch < 3000;
  }

  const later = () => setTimeout(() => { if (order) apply(false); }, 150);
  if (rows) {
    rows.addEventListener("pointerleave", later);
    rows.addEventListener("focusout", later);
    document.addEventListener("touchend", () => setTimeout(later, 3000), { passive: true });
    document.addEventListener("selectionchange", later);
  }
  Lockscope.eachSecond(() => { if (regions.size > 0) apply(false); });

  const waitingBox = byId("waiting");
  function showWaiting() {
    if (!waitingBox) return;
    const wanted = paused ? null : order;
    waitingBox.hidden = !wanted || !touched;
    for (const row of shown()) {
      const gone = Boolean(wanted) && !wanted.includes(row.id);
      row.classList.toggle("gone", gone);
      row.title = gone ? "No longer in this list: apply the changes to remove it" : "";
    }
    if (!wanted) return;
    const here = shown().map((row) => row.id);
    const left = here.filter((id) => !wanted.includes(id));
    const come = wanted.filter((id) => !here.includes(id));
    const stay = wanted.filter((id) => here.includes(id));
    const moved = here.filter((id) => wanted.includes(id)).filter((id, i) => stay[i] !== id).length;
    const n = left.length + come.length + (moved > 0 ? 1 : 0);
    const parts = [];
    if (come.length) parts.push(`${come.length} new`);
    if (left.length) parts.push(`${left.length} gone`);
    if (moved) parts.push("another order");
    setText(waitingBox.querySelector("button"), `${n} ${n === 1 ? "change" : "changes"}, apply (${parts.join(", ")})`);
  }
  waitingBox?.querySelector("button").addEventListener("click", () => apply(true));

  // --- Pause by hand, and changes while nobody can see the page.
  const pause = byId("pause");
  function showPause() {
    pause.setAttribute("aria-pressed", String(paused));
    const n = missed.size;
    const text = !paused ? "Pause" : n === 0 ? "Resume" : `Resume, ${n} missed`;
    setText(pause.querySelector(".label"), text);
    // A narrow window shows only the sign.
    pause.setAttribute("aria-label", text);
    body.classList.toggle("paused", paused);
  }
  function togglePause() {
    paused = !paused;
    if (!paused) for (const id of known.keys()) stamp(byId(id), known.get(id).ttl);
    apply(true);
    Lockscope.tick();
  }
  pause.addEventListener("click", togglePause);
  if (!body.dataset.live) pause.hidden = true;

  const awayBox = byId("away");
  let awayTimer = 0;
  document.addEventListener("visibilitychange", () => { away ||= document.hidden && known.size > 0; });
  // Returns the ids of the rows that differ from those known before.
  function changedSince(before) {
    const text = (row) => row?.lines.join("\n");
    const ids = new Set([...before.keys(), ...known.keys()]);
    return [...ids].filter((id) => text(before.get(id)) !== text(known.get(id)));
  }
  function tellAway(n) {
    away = false;
    setText(awayBox, n === 0 ? "" : `${n} ${n === 1 ? "row" : "rows"} changed while this tab was hidden`);
    clearTimeout(awayTimer);
    awayTimer = setTimeout(() => setText(awayBox, ""), 15000);
  }

  showPause();
  Lockscope.stream.begin(receive);
})();
