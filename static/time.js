// Ages, times to live and instants, updated every second by the dashboard's clock, so that the reader's clock may be wrong.
// Ages are counted by its steady clock, and instants are shown by its host's wall clock, which may have been set.
//
//   time[data-at]                its age                 [data-clock], [data-day]  its time of day; its day, unless today
//   .time-left                   the rest of the time to live (data-ttl) with which the nearest [data-observed] was read
//   input[data-instant]          an instant that a form sends in UTC; .zone-name names the zone of its text
//   [data-observed]              stale once its reading is too old; .read-ago within it shows how old
"use strict";
const Lockscope = (() => {
  const body = document.body;
  const byId = (id) => document.getElementById(id);

  // --- Clock.
  let clock = { theirs: Number(body?.dataset.now), ours: Date.now(), set: Number(body?.dataset.set) };
  const now = () => clock.theirs + Date.now() - clock.ours;
  const wall = () => now() + clock.set;
  const setClock = (theirs, set) => { clock = { theirs, ours: Date.now(), set }; };
  // The instant of what the page shows, for printing.
  let shownOf = clock.theirs + clock.set;
  const setShown = (at) => { shownOf = at; };

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

  // --- UTC, or the reader's time zone.
  let local = false;
  try {
    local = localStorage.getItem("zone") === "local";
  } catch {
    // Storage may be forbidden: then times are in UTC until the reader chooses otherwise.
  }
  const parts = (at) => local
    ? new Date(at - new Date(at).getTimezoneOffset() * 60000).toISOString()
    : new Date(at).toISOString();
  const timeOfDay = (at) => parts(at).slice(11, 19);
  const day = (at) => parts(at).slice(0, 10);
  function instant(at) {
    if (!local) return new Date(at).toISOString();
    const ahead = -new Date(at).getTimezoneOffset();
    const zone = `${ahead < 0 ? "-" : "+"}${two(Math.floor(Math.abs(ahead) / 60))}:${two(Math.abs(ahead) % 60)}`;
    return parts(at).slice(0, 23) + zone;
  }

  // --- Fields for instants: their text is in the zone of all other times, and a form sends them in UTC.
  const WHOLE = /^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d(?:\.\d+)?)?(Z|[+-]\d\d:\d\d)?$/i;
  const OF_DAY = /^([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?$/;

  // Returns the instant that a text names, NaN if it names none. A time of day means the latest such time.
  function named(text, isLocal) {
    const whole = WHOLE.exec(text);
    if (whole) {
      const [, date, minute, second = ":00", offset = isLocal ? "" : "Z"] = whole;
      return Date.parse(`${date}T${minute}${second}${offset.toUpperCase()}`);
    }
    const ofDay = OF_DAY.exec(text);
    if (!ofDay) return NaN;
    const [hour, minute, second] = ofDay.slice(1).map((part) => Number(part ?? 0));
    const at = new Date(wall());
    if (isLocal) at.setHours(hour, minute, second, 0);
    else at.setUTCHours(hour, minute, second, 0);
    if (at > wall() && isLocal) at.setDate(at.getDate() - 1);
    else if (at > wall()) at.setUTCDate(at.getUTCDate() - 1);
    return at.getTime();
  }

  // Returns the text for the same instant in UTC or local time. A text that names none, such as `-15m`, stays as it is.
  function translated(typed, isLocal, toLocal) {
    const text = typed.trim();
    const at = named(text, isLocal);
    if (isLocal === toLocal || Number.isNaN(at)) return typed;
    const shown = toLocal ? at - new Date(at).getTimezoneOffset() * 60000 : at;
    const whole = new Date(shown).toISOString();
    if (OF_DAY.test(text)) return whole.slice(11, 11 + text.length);
    return whole.slice(0, 23).replace(/\.000$/, "") + (toLocal ? "" : "Z");
  }

  function showFields() {
    for (const field of document.querySelectorAll("input[data-instant]")) {
      field.value = translated(field.value, field.dataset.instant === "local", local);
      field.dataset.instant = local ? "local" : "utc";
    }
  }
  document.addEventListener("formdata", (event) => {
    for (const field of event.target.querySelectorAll("input[data-instant]")) {
      event.formData.set(field.name, translated(field.value, field.dataset.instant === "local", false));
    }
  });

  const zone = byId("zone");
  function showZone() {
    showFields();
    if (!zone) return;
    zone.textContent = local ? "Local" : "UTC";
    zone.setAttribute("aria-label", `Times: ${local ? "local" : "UTC"}`);
  }
  zone?.addEventListener("click", () => {
    local = !local;
    try {
      localStorage.setItem("zone", local ? "local" : "utc");
    } catch {
      // The choice then lasts only for this page.
    }
    showZone();
    tick();
  });

  // --- The update every second, and after each change.
  const staleAfter = Number(body?.dataset.stale);
  const RAN_OUT = "What was read has run out since; the lock has not been read again";
  const listeners = [];

  function countDown(ttl, at) {
    const read = ttl.closest("[data-observed]");
    if (!read?.dataset.ttl) return;
    const whole = Number(read.dataset.ttl);
    const left = whole - (at - Number(read.dataset.observed));
    const text = ttl.querySelector(".left");
    setText(text, left < 0 ? `over by ${duration(-left)}` : duration(left));
    const hint = left < 0 ? RAN_OUT : "";
    if (text.title !== hint) text.title = hint;
    ttl.classList.toggle("over", left < 0);
    const bar = ttl.querySelector("progress");
    if (bar.max < whole) bar.max = whole;
    bar.value = Math.max(0, left);
  }

  function showInstant(time) {
    const title = instant(Date.parse(time.dateTime));
    if (time.title !== title) time.title = title;
  }

  // Fills in the times of the page, or only those in one element.
  function tick(root = document) {
    const at = now();
    for (const time of root.querySelectorAll("time[data-at]")) {
      const its = Number(time.dataset.at);
      setText(time, duration(at - its));
      showInstant(time);
    }
    for (const time of root.querySelectorAll("time[data-when]")) {
      const its = Number(time.dataset.when);
      setText(time, its > at ? `in ${duration(its - at)}` : `${duration(at - its)} ago`);
      showInstant(time);
    }
    for (const time of root.querySelectorAll("[data-clock]")) setText(time, timeOfDay(Number(time.dataset.clock)));
    for (const time of root.querySelectorAll("[data-clock-ms]")) setText(time, parts(Number(time.dataset.clockMs)).slice(11, 23));
    for (const time of root.querySelectorAll("[data-minute]")) setText(time, parts(Number(time.dataset.minute)).slice(11, 16));
    for (const name of root.querySelectorAll(".zone-name")) setText(name, local ? "local time" : "UTC");
    const today = day(wall());
    for (const time of root.querySelectorAll("[data-day]")) {
      const its = day(Number(time.dataset.day));
      setText(time, its === today ? "" : `${its} `);
    }
    for (const ttl of root.querySelectorAll(".time-left")) countDown(ttl, at);
    const reads = [...root.querySelectorAll("[data-observed]")];
    if (root !== document && root.matches("[data-observed]")) reads.push(root);
    for (const read of reads) {
      const passed = at - Number(read.dataset.observed);
      read.classList.toggle("stale", passed > staleAfter);
      setText(read.querySelector(".read-ago"), duration(passed));
    }
    if (root !== document) return;
    setText(byId("as-of"), instant(Math.floor(shownOf / 1000) * 1000));
    for (const listener of listeners) listener();
  }

  showZone();
  tick();
  setInterval(() => tick(), 1000);
  return { byId, duration, setText, setClock, setShown, tick, eachSecond: (listener) => listeners.push(listener) };
})();
