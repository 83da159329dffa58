// Runs before the first paint, so that a dark page never flashes white.
const chosen = localStorage.getItem("galley-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
