"use strict";
/* Tables sort by a button in each head and filter by words; without this they are plain tables. */
(() => {
  const said = document.getElementById("said");
  const NUMBER = /^~?([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)([kMGTP]?)/;
  const SIZES = { "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15 };
  const ORDERS = { none: "ascending", ascending: "descending", descending: "none" };
  const FEW = 6;
  const names = new Intl.Collator("en", { numeric: true });

  /* The figure that a cell shows; null where it has none. */
  function figure(cell) {
    const parts = NUMBER.exec(cell.textContent.trim());
    return parts && Number(parts[1].replaceAll(",", "")) * SIZES[parts[2]];
  }

  /* Rows in the order of a column; those without a figure come last in both orders. */
  function sorted(rows, column, isWord, order) {
    const sign = order === "descending" ? -1 : 1;
    const keys = new Map(rows.map((row) => {
      const cell = row.cells[column];
      return [row, isWord ? cell.textContent.trim() : figure(cell)];
    }));
    return [...rows].sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (isWord ? names.compare(x, y) : x - y);
    });
  }

  function makeSortable(table) {
    const body = table.tBodies[0];
    const inOrder = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const label = head.textContent.trim();
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const order = ORDERS[head.getAttribute("aria-sort")];
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", order);
        const isWord = head.classList.contains("word");
        body.append(...(order === "none" ? inOrder : sorted(inOrder, column, isWord, order)));
        said.textContent = order === "none" ? "In the order of the run" : `By ${label}, ${order}`;
      });
    });
  }

  function makeFiltered(table) {
    const field = document.getElementById(`${table.id}-filter`);
    const place = field.closest(".filter");
    const rows = [...table.tBodies[0].rows];
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    place.hidden = rows.length < FEW;
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach((row) => { row.hidden = !words.every((word) => texts.get(row).includes(word)); });
      const shown = rows.filter((row) => !row.hidden).length;
      const count = words.length ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
      place.querySelector(".count").textContent = said.textContent = count;
    });
  }

  document.querySelectorAll("table").forEach((table) => {
    makeSortable(table);
    makeFiltered(table);
  });
})();
