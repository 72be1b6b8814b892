// Runs before the first paint. Restores the chosen colours, and marks the page as scripted, so that the style sheet shows
// what needs a script.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden: then the system's choice applies.
  }
})();
