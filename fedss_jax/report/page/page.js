"use strict";
// The page works without this, but for the gallery and the map, which are built from the data that the page holds.
(function () {
  const root = document.documentElement;
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null; // by the reader; nothing is stored
  const paint = () => { root.dataset.scheme = chosen || (prefersDark.matches ? "dark" : "light"); };
  paint();
  prefersDark.addEventListener("change", paint);
  document.getElementById("scheme").addEventListener("click", () => {
    chosen = root.dataset.scheme === "dark" ? "light" : "dark";
    paint();
  });

  function element(tag, name, text) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text; // never as HTML: names come from data
    return made;
  }
  function press(buttons, pressed) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button === pressed));
  }

  // Figures: lines can be hidden, and tell about their points.
  for (const figure of document.querySelectorAll("figure")) {
    for (const button of figure.querySelectorAll("[data-toggle]")) {
      button.addEventListener("click", () => {
        const show = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(show));
        for (const line of figure.querySelectorAll(`[data-series="${button.dataset.toggle}"]`)) line.classList.toggle("off", !show);
      });
    }
  }
  const tip = document.getElementById("tip");
  function tell(event) {
    const text = about(event.target);
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
  }
  function about(target) {
    if (!(target instanceof Element)) return "";
    const shown = target.closest("[data-tip]");
    if (shown) return shown.dataset.tip;
    const line = target.closest("[data-series]");
    if (!line) return "";
    const markers = [...line.querySelectorAll("use")];
    const place = markers.indexOf(target.closest("use"));
    return place < 0 ? line.dataset.label : JSON.parse(line.dataset.points)[place] || line.dataset.label;
  }
  document.addEventListener("pointermove", tell);
  document.addEventListener("pointerdown", tell);

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = "copied";
      } catch {
        button.textContent = "select it";
      }
    });
  }

  const source = document.getElementById("data");
  if (!source) return;
  const data = JSON.parse(source.textContent);

  function picture(number, size) {
    const made = element("div", "picture");
    const { columns, rows } = data.pictures;
    made.style.setProperty("--size", `${size}px`);
    made.style.backgroundSize = `${columns * size}px ${rows * size}px`;
    made.style.backgroundPosition = `${-(number % columns) * size}px ${-Math.floor(number / columns) * size}px`;
    return made;
  }
  function example(of, size) {
    const made = element("div", "shown" + (of.right === undefined ? "" : of.right ? " right" : " wrong"));
    made.append(data.pictures ? picture(of.picture, size) : element("span", "text", of.class));
    if (of.right !== undefined) made.append(element("span", "mark", of.right ? "✓" : "✗"));
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", of.class + (of.right === undefined ? "" : of.right ? ", right" : ", wrong"));
    made.dataset.tip = of.class;
    return made;
  }

  // The gallery.
  const list = document.getElementById("queries"), count = document.getElementById("count");
  const more = document.getElementById("more"), search = document.getElementById("search");
  const kinds = [...document.querySelectorAll("[data-kind]")];
  const AT_A_TIME = 8;
  let kind = "random", limit = AT_A_TIME;
  function row(query) {
    const made = element("div", "query");
    const told = element("div", "about");
    const right = query.neighbours.filter((neighbour) => neighbour.right).length;
    told.append(element("b", "", query.class), ` ${right} right of ${query.possible} possible, score ${query.score.toFixed(2)}`);
    made.append(told, example(query, 60), element("span", "arrow", "→"));
    for (const neighbour of query.neighbours) made.append(example(neighbour, 54));
    return made;
  }
  function gallery() {
    const words = search.value.trim().toLowerCase();
    const found = data.queries.filter((query) => (words ? query.class.toLowerCase().includes(words) : query.kind === kind));
    list.replaceChildren(...found.slice(0, limit).map(row));
    const what = words ? `queries of classes with “${search.value.trim()}”` : `${kind} queries`;
    count.textContent = found.length ? `${Math.min(limit, found.length)} of ${found.length} ${what}` : `no ${what}`;
    more.hidden = found.length <= limit;
    for (const mapped of document.querySelectorAll("#classmap .class")) {
      mapped.classList.toggle("found", Boolean(words) && mapped.dataset.name.toLowerCase().includes(words));
    }
  }
  for (const button of kinds) {
    button.addEventListener("click", () => {
      kind = button.dataset.kind;
      limit = AT_A_TIME;
      search.value = "";
      press(kinds, button);
      gallery();
    });
  }
  search.addEventListener("input", () => { limit = AT_A_TIME; gallery(); });
  more.addEventListener("click", () => { limit += AT_A_TIME; gallery(); });

  // The map.
  const map = document.getElementById("classmap"), mapname = document.getElementById("mapname");
  for (const each of data.map) {
    const made = element("button", "class");
    made.type = "button";
    made.style.left = `${3 + 94 * each.at[0]}%`;
    made.style.top = `${97 - 94 * each.at[1]}%`;
    made.style.setProperty("--grow", String(0.55 + 0.6 * each.score));
    made.style.setProperty("--strength", String(0.4 + 0.6 * each.score));
    made.style.setProperty("--share", `${Math.round(100 * each.score)}%`);
    made.dataset.name = each.class;
    made.dataset.tip = `${each.class}: ${each.score.toFixed(2)}`;
    made.setAttribute("aria-label", made.dataset.tip);
    if (data.pictures) made.append(picture(each.picture, 28));
    made.append(element("span", "dot"));
    made.addEventListener("focus", () => { mapname.textContent = made.dataset.tip; });
    made.addEventListener("pointerenter", () => { mapname.textContent = made.dataset.tip; });
    map.append(made);
  }
  const ways = [...document.querySelectorAll("[data-as]")];
  for (const button of ways) {
    button.addEventListener("click", () => {
      map.className = button.dataset.as;
      press(ways, button);
    });
  }

  // Hard and easy classes.
  for (const id of ["hardest", "easiest"]) {
    for (const each of data[id]) {
      const line = element("li");
      if (data.pictures) line.append(picture(each.picture, 36));
      const bar = element("span", "bar"), filled = element("i");
      filled.style.width = `${100 * each.score}%`;
      bar.append(filled);
      line.append(element("span", "name", each.class), bar, element("span", "number", each.score.toFixed(2)));
      document.getElementById(id).append(line);
    }
  }
  gallery();
})();
