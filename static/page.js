// Copy buttons, colours and keys: conveniences that do not depend on live updates.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);

  // --- Copy.
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // The clipboard is not available without TLS: copy in the old way.
      const area = document.createElement("textarea");
      area.value = text;
      area.readOnly = true;
      area.className = "unseen";
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      if (!done) throw new Error("the browser does not let this page copy");
    }
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button.copy");
    if (!button) return;
    // The word on the button, before what a screen reader calls the copied text.
    const word = button.firstChild;
    const label = button.dataset.label ??= word.data;
    const say = (result) => {
      word.data = result;
      byId("copied").textContent = result;
    };
    try {
      await copy(button.dataset.copy);
      say("Copied ");
    } catch {
      say("Not allowed ");
    }
    button.focus();
    setTimeout(() => {
      word.data = label;
      byId("copied").textContent = "";
    }, 1500);
  });

  // --- Colours: the system's choice, light or dark.
  const theme = byId("theme");
  function showTheme() {
    const chosen = document.documentElement.dataset.theme;
    theme.textContent = { light: "Light", dark: "Dark" }[chosen] ?? "Auto";
    theme.setAttribute("aria-label", `Colours: ${theme.textContent}`);
  }
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const next = { undefined: "light", light: "dark" }[root.dataset.theme];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    try {
      if (next) localStorage.setItem("theme", next);
      else localStorage.removeItem("theme");
    } catch {
      // Storage may be forbidden: then the choice lasts only for this page.
    }
    showTheme();
  });

  // --- Keys.
  const rows = byId("rows");
  const keys = byId("keys");
  const filter = byId("filter");
  // On a page that asks for a number, digits open no other page.
  const pages = document.querySelector("form.release") ? [] : [...document.querySelectorAll("header nav a")];
  byId("help").addEventListener("click", () => keys.showModal());

  function step(by) {
    const links = [...rows.children].map((row) => row.querySelector("th a")).filter(Boolean);
    if (links.length === 0) return;
    const at = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
    const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by));
    links[next].focus();
    links[next].closest("tr").scrollIntoView({ block: "nearest" });
  }

  // --- The popover of the health sign closes like a menu.
  const health = document.querySelector("details.health");
  document.addEventListener("click", (event) => {
    if (!health.contains(event.target)) health.open = false;
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    if (event.key === "Escape" && health.open) {
      health.open = false;
      health.querySelector("summary").focus();
    }
    if (event.target.matches("input, textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const act = {
      "/": filter && (() => { filter.focus(); filter.select(); }),
      j: rows && (() => step(1)),
      k: rows && (() => step(-1)),
      a: rows && (() => byId("waiting")?.querySelector("button").click()),
      p: document.body.dataset.live && (() => byId("pause").click()),
      u: () => byId("zone").click(),
      ...Object.fromEntries(pages.map((link, i) => [String(i + 1), () => link.click()])),
      "?": () => keys.showModal(),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  showTheme();
})();
