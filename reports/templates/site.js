// Filters, copy buttons, and a page that says when it has grown old. Everything else works without a script.
"use strict";

const aged = document.getElementById("aged");
const days = (Date.now() - Date.parse(document.body.dataset.built)) / 864e5;
if (days > Number(document.body.dataset.staleDays)) {
  aged.textContent = `This page was built ${Math.floor(days)} days ago. Newer nights are not in it.`;
  aged.hidden = false;
}

for (const button of document.querySelectorAll("[data-copies]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copies);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "copied";
    } catch {  // no clipboard for file:// in some browsers: select it, so that a key copies it
      getSelection().selectAllChildren(source);
      button.textContent = "selected";
    }
  });
}

const form = document.getElementById("filters");
if (form) {
  const words = Object.fromEntries([...form.elements.status.options].map((option) => [option.value, option]));
  const rows = [...document.querySelectorAll(".matrix tbody tr")];
  const facets = ["backend", "layout", "precision", "exporter", "box"];
  for (const cell of document.querySelectorAll(".matrix td")) {
    const shown = cell.firstElementChild;
    Object.assign(cell, { symbol: shown.textContent, label: shown.getAttribute("aria-label"), kept: cell.className });
    cell.checks = Object.fromEntries((cell.dataset.checks || "").split(" ").filter(Boolean).map((pair) => pair.split(":")));
  }

  const show = () => {
    const asked = Object.fromEntries(new FormData(form));
    let shown = 0, all = 0;
    for (const row of rows) {
      const wanted = facets.every((facet) => !asked[facet] || row.dataset[facet] === asked[facet]);
      let here = 0;
      for (const cell of row.querySelectorAll("td")) {
        const status = asked.check ? cell.checks[asked.check] || "MISSING" : cell.dataset.status;
        const inside = cell.firstElementChild;
        inside.textContent = asked.check ? words[status].dataset.symbol : cell.symbol;
        inside.setAttribute("aria-label", asked.check ? `${cell.label}; ${asked.check}: ${words[status].text}` : cell.label);
        cell.className = asked.check ? cell.kept.replace(/s-\w+/, `s-${status}`) : cell.kept;
        const fits = wanted && (!asked.status || status === asked.status);
        cell.classList.toggle("out", !fits);
        if (cell.dataset.status === "MISSING" && !asked.status) continue;
        all += cell.dataset.status !== "MISSING";
        here += fits;
      }
      row.hidden = !here;
      shown += here;
    }
    document.getElementById("shown").textContent = `${shown} of ${all} cells`;
    document.getElementById("none").hidden = shown > 0;
    const set = Object.entries(asked).filter(([, value]) => value);
    history.replaceState(null, "", set.length ? "#" + new URLSearchParams(set) : location.pathname + location.search);
  };

  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (form.elements[name]) form.elements[name].value = value;  // a link to a filtered matrix
  }
  form.addEventListener("change", show);
  form.addEventListener("reset", () => setTimeout(show));
  document.getElementById("again").addEventListener("click", () => form.reset());
  show();
}
