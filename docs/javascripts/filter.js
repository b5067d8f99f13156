// A field above the tables of a page that asks for it (<div class="table-filter">): rows that do not
// hold what is typed are hidden, and so are headings whose tables have become empty.
document$.subscribe(() => {
  const place = document.querySelector(".table-filter")
  if (!place || place.childElementCount) return
  const field = document.createElement("input")
  field.type = "search"
  field.placeholder = place.dataset.placeholder
  field.setAttribute("aria-label", place.dataset.placeholder)
  const count = document.createElement("output")
  place.append(field, count)

  const tables = [...document.querySelectorAll("article table")].filter(
    (table) => place.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING,
  )
  const rows = tables.flatMap((table) => [...table.tBodies[0].rows])
  const texts = rows.map((row) => row.textContent.toLowerCase())

  function filter() {
    const wanted = field.value.toLowerCase().trim()
    rows.forEach((row, i) => (row.hidden = !texts[i].includes(wanted)))
    for (const table of tables) {
      const empty = [...table.tBodies[0].rows].every((row) => row.hidden)
      const block = table.closest(".md-typeset__scrollwrap") ?? table
      block.hidden = empty
      const heading = block.previousElementSibling
      if (heading?.matches("h2")) heading.hidden = empty
    }
    const found = rows.filter((row) => !row.hidden).length
    count.textContent = wanted ? `${found} of ${rows.length}` : ""
  }
  field.addEventListener("input", filter)
})
