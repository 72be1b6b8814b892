// Runs before the first paint: puts back the colours that were chosen, and lets the style sheet know that
// scripts run, so that what needs one shows.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden: then the system's choice stands.
  }
})();
