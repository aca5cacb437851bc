// Tables that readers sort by a column: by its numbers where it has some, else by its text.

function sortableTables() {
  for (const made of document.querySelectorAll("table.sortable")) {
    const heads = [...made.tHead.rows[0].cells];
    const state = { column: -1, down: false };
    const sortBy = (column) => {
      state.down = state.column === column ? !state.down : isNumeric(made, column);
      state.column = column;
      sortRows(made, state);
      heads.forEach((head, place) => {
        const mine = place === column;
        head.setAttribute("aria-sort", mine ? (state.down ? "descending" : "ascending") : "none");
        head.querySelector(".direction").textContent = mine ? (state.down ? "\u00a0▼" : "\u00a0▲") : "\u00a0↕";
      });
    };
    heads.forEach((head, column) => {
      const name = head.textContent;
      head.replaceChildren(create("button", { type: "button", on: { click: () => sortBy(column) } },
        name, create("span", { class: "direction", "aria-hidden": "true" }, "\u00a0↕")));
    });
    const names = heads.map((head, column) => [column, head.textContent.replace("\u00a0↕", "")]);
    const chosen = choice("sort by", [["", "settings"], ...names], (value) => { if (value !== "") sortBy(Number(value)); });
    chosen.classList.add("narrow");
    made.closest(".scroll").before(chosen);
  }
}

function isNumeric(made, column) {
  return [...made.tBodies[0].rows].some((row) => row.cells[column].dataset.number !== undefined);
}

// Rows without a number come last, whichever way.
function sortRows(made, { column, down }) {
  const key = (row) => {
    const cell = row.cells[column];
    return { number: cell.dataset.number === undefined ? null : Number(cell.dataset.number), text: cell.textContent };
  };
  const rows = [...made.tBodies[0].rows].map((row) => [key(row), row]);
  const sign = down ? -1 : 1;
  rows.sort(([one], [other]) => {
    if (one.number !== null && other.number !== null) return sign * (one.number - other.number);
    if (one.number !== null || other.number !== null) return one.number === null ? 1 : -1;
    return sign * one.text.localeCompare(other.text, "en", { numeric: true });
  });
  made.tBodies[0].append(...rows.map(([, row]) => row));
}
