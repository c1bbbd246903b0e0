// A notebook may run this once for each output, or for all of them at once.
for (const table of document.querySelectorAll(".modelscope table.rows:not(.sortable)")) {
  table.classList.add("sortable");
  sortable(table, () => {
    // Sorted rows are all shown, each with its full name.
    for (const row of table.querySelectorAll("tr.gap")) row.remove();
    for (const cell of table.querySelectorAll("td[data-name]")) cell.textContent = cell.dataset.name;
    const folded = table.closest(".modelscope").querySelector("details");
    if (folded) folded.open = true;
  });
}
