"use strict";
// Sorting, filters and the theme. The page is whole without them.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Tables: a click on a heading sorts by it, numbers by size and the rest as text.
  const key = (row, at) => {
    const cell = row.cells[at];
    return cell.dataset.n === undefined ? cell.textContent : Number(cell.dataset.n);
  };
  const sort = (table, at, heading) => {
    const down = heading.getAttribute("aria-sort") === "ascending"
      || (heading.getAttribute("aria-sort") === "none" && heading.classList.contains("n"));
    const body = table.tBodies[0];
    const order = (a, b) => {
      const [x, y] = [key(a, at), key(b, at)];
      return typeof x === "number" ? x - y : x.localeCompare(y);
    };
    const rows = [...body.rows].sort(order);
    body.append(...(down ? rows.reverse() : rows));
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  for (const table of all("table.sortable")) {
    if (table.tBodies[0].rows.length < 2) continue;
    [...table.tHead.rows[0].cells].forEach((heading, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, at, heading));
      heading.append(button);
      heading.setAttribute("aria-sort", "none");
    });
  }

  // Findings: by severity and by any text on the card.
  const tools = document.querySelector(".tools");
  if (tools) {
    const cards = all(".card"), search = document.getElementById("search"), matches = document.getElementById("matches");
    const texts = cards.map((card) => card.textContent.toLowerCase());
    const filter = () => {
      const wanted = search.value.trim().toLowerCase();
      const severities = new Set(all("input[name=severity]:checked", tools).map((box) => box.value));
      let shown = 0;
      cards.forEach((card, at) => {
        card.hidden = !(severities.has(card.dataset.severity) && texts[at].includes(wanted));
        shown += !card.hidden;
      });
      matches.textContent = shown === cards.length ? "" : `${shown} of ${cards.length} rules`;
    };
    tools.hidden = false;
    tools.addEventListener("input", filter);
    // A link to a card that a filter hides must still lead there.
    const reveal = () => {
      const card = cards.find((one) => `#${one.id}` === decodeURIComponent(location.hash));
      if (!card) return;
      card.hidden = false;
      for (const details of all("details", card)) details.open = true;
      card.scrollIntoView();
    };
    addEventListener("hashchange", reveal);
    reveal();
  }

  // Commands, filters and queries: a button beside each copies it.
  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { /* not for a page from a file, in some browsers */ }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  for (const code of all("code.copy")) {
    const button = document.createElement("button"), text = code.textContent;
    button.type = "button";
    button.className = "copies";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy ${text}`);
    button.addEventListener("click", async () => {
      button.textContent = (await copied(text)) ? "Copied" : "Not copied";
      button.focus();
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    code.after(" ", button);
  }

  // A link to something that is folded away opens it.
  const unfold = () => {
    const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (place && place.tagName === "DETAILS") place.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  // Theme: as the system says, until somebody chooses.
  const themes = ["auto", "light", "dark"], button = document.getElementById("theme");
  const remembered = () => { try { return localStorage.getItem("wirehare-theme"); } catch { return null; } };
  const show = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  let theme = themes.includes(remembered()) ? remembered() : "auto";
  button.hidden = false;
  show(theme);
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("wirehare-theme", theme); } catch { /* a page from a file may not remember */ }
    show(theme);
  });

  // Paper shows what is folded away on the screen.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("details:not([open])");
    for (const details of folded) details.open = true;
  });
  addEventListener("afterprint", () => { for (const details of folded) details.open = false; });
})();
