"use strict";
// Tables of pages and notebooks: a click on a heading sorts the rows, largest first, a second one the other way.
const rowsOf = (table) => [...table.tBodies[0].rows].filter((row) => !row.classList.contains("open"));

function sortable(table, prepare = () => {}) {
  const units = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
  const amount = (text) => {
    const found = /^[<>]?\s*([-+]?(?:inf|[\d,]*\.?\d+(?:e[-+]?\d+)?))\s*([kMGT](?:iB)?)?/.exec(text.trim());
    return found ? Number(found[1].replaceAll(",", "").replace("inf", "Infinity")) * (units[found[2]] ?? 1) : null;
  };
  const headings = [...table.tHead.rows[0].cells];

  function sort(heading, column) {
    prepare();
    const order = heading.getAttribute("aria-sort") === "descending" ? 1 : -1;
    const isNumber = heading.classList.contains("n");
    const text = (row) => row.cells[column].textContent;
    const key = isNumber ? (row) => amount(text(row)) : text;
    const compare = (a, b) => (isNumber ? a - b : a.localeCompare(b, "en", { numeric: true }));
    const keyed = rowsOf(table).map((row, place) => [key(row), place, row]);
    const isEmpty = (one) => one === null || one === "";
    keyed.sort(([a, i], [b, j]) =>
      isEmpty(a) || isEmpty(b) ? isEmpty(a) - isEmpty(b) || i - j : order * compare(a, b) || i - j);
    for (const one of headings) if (one.hasAttribute("aria-sort")) one.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
    for (const [, , row] of keyed) {
      const opened = row.nextElementSibling?.classList.contains("open") ? row.nextElementSibling : null;
      table.tBodies[0].append(row, ...(opened ? [opened] : []));
    }
  }

  headings.forEach((heading, column) => {
    if (!heading.textContent) return;
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: heading.textContent });
    button.addEventListener("click", () => sort(heading, column));
    heading.replaceChildren(button);
    heading.setAttribute("aria-sort", "none");
  });
}
