// Runs before the first paint, so that a page switched to dark is never seen white.
const chosen = localStorage.getItem("galley-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
