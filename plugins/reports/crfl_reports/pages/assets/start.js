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

// Terms show their entry of the glossary below them; the links themselves lead to it.
const tip = create("div", { id: "tip", role: "tooltip", hidden: true });
document.body.append(tip);

function explain(term) {
  const meaning = words.glossary[term.dataset.term];
  if (!meaning) return;
  tip.textContent = meaning;
  tip.hidden = false;
  term.setAttribute("aria-describedby", "tip");
  const at = term.getBoundingClientRect();
  const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, left) + scrollX}px`;
  tip.style.top = `${at.bottom + scrollY + 4}px`;
}

for (const event of ["mouseover", "focusin"]) {
  document.addEventListener(event, ({ target }) => {
    const term = target.closest(".term");
    if (term) explain(term);
  });
}
for (const event of ["mouseout", "focusout", "keydown"]) {
  document.addEventListener(event, (happened) => {
    if (event !== "keydown" || happened.key === "Escape") tip.hidden = true;
  });
}

for (const figure of [
  curvesFigure, explorerFigure, roundsFigure, weightsFigure, shownFigures, samplesFigure, folderFigure,
  sortableTables,
]) figure();
applyTheme(remembered());
