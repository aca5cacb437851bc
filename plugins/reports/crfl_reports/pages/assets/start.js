// Colours, printing, and the beginning of everything.

const THEMES = ["automatic", "light", "dark"];
const themeButton = document.getElementById("theme");

function remembered() {
  try {
    return localStorage.getItem("crfl-theme") || "automatic";
  } catch {
    return "automatic"; // files may have no storage
  }
}

function applyTheme(name) {
  if (name === "automatic") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  themeButton.textContent = `Colours: ${name}`;
  redrawAll();
}

themeButton.addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || "automatic";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  try {
    localStorage.setItem("crfl-theme", next);
  } catch {
    // it holds for this visit
  }
  applyTheme(next);
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

let beforePrinting = null;

addEventListener("beforeprint", () => {
  const closed = [...document.querySelectorAll("main details:not(.numbers):not([open])")];
  beforePrinting = { theme: document.documentElement.dataset.theme || "automatic", closed };
  closed.forEach((one) => { one.open = true; });
  onPaper = true;
  applyTheme("light");
});

addEventListener("afterprint", () => {
  beforePrinting?.closed.forEach((one) => { one.open = false; });
  onPaper = false;
  applyTheme(beforePrinting?.theme || "automatic");
});

for (const figure of [
  curvesFigure, explorerFigure, roundsFigure, weightsFigure, shownFigures, samplesFigure, folderFigure,
]) figure();
applyTheme(remembered());
