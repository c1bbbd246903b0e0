// A notebook may run this once for each output, or for all of them at once.
for (const table of document.querySelectorAll(".modelscope table.rows:not(.sortable)")) {
  table.classList.add("sortable");
  sortable(table, () => {
    // Sorted rows have their full names.
    for (const cell of table.querySelectorAll("td[data-name]")) cell.textContent = cell.dataset.name;
  });
}
