// Several runs: curves of all of them, with bands over seeds.

function folderFigure() {
  const home = place("folder");
  if (!home) return;
  if (!data.folder.length) {
    home.append(create("p", {}, "No run here certifies anything."));
    return;
  }
  const kinds = unique(data.folder.map((one) => one.kind));
  const sets = unique(data.folder.map((one) => one.set));
  const state = { kind: kinds[0], set: sets[0], measure: "accuracy" };
  const area = create("div");
  const notes = create("div", { class: "note" });
  const draw = () => drawFolder(area, notes, state);
  const set = (key) => (value) => { state[key] = value; draw(); };
  home.append(
    create("div", { class: "controls" },
      choice("certificate", kinds.map((kind) => [kind, kind]), set("kind")),
      choice("test set", sets.map((name) => [name, name]), set("set")),
      choice("share", MEASURES, set("measure"))),
    area, notes);
  draw();
}

function drawFolder(area, notes, state) {
  const shown = data.folder.filter((one) => one.kind === state.kind && one.set === state.set);
  if (!shown.length) {
    notes.replaceChildren(create("p", {}, "No run has this on this test set."));
    area.classList.add("greyed");
    return;
  }
  area.classList.remove("greyed");
  const { x, text } = positions(shown[0].radii.map(asNumber));
  chart(area, {
    title: `Certified ${state.measure}: ${state.kind}, ${state.set} test set`, xLabel: words.levels[shown[0].level],
    yLabel: "share of test samples", x, xText: text, share: true, steps: shown[0].level === "client",
    series: shown.map((one, index) => ({
      name: `${one.name}${one.runs > 1 ? `, mean of ${one.runs} seeds` : ""}`,
      values: one[state.measure].mean, colour: lineColour(index), dash: index >= 6,
      band: one.runs > 1 ? [one[state.measure].least, one[state.measure].most] : undefined,
    })),
  });
  notes.replaceChildren(basisList(shown));
}
