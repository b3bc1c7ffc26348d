"use strict";
(() => {
  const root = document.documentElement;
  const narrow = () => window.innerWidth < 640;
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

  // "@name" anywhere in a figure is the colour --name of the page.
  function resolved(value) {
    if (typeof value === "string" && value[0] === "@") return colour(value.slice(1)) || value;
    if (Array.isArray(value)) return value.map(resolved);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, resolved(one)]));
    }
    return value;
  }

  function template() {
    const axis = {
      gridcolor: colour("grid"), zerolinecolor: colour("line"), linecolor: colour("line"),
      automargin: true, ticklabelstandoff: 4, title: { standoff: 8 },
    };
    const font = { color: colour("text"), size: 13, family: getComputedStyle(document.body).fontFamily };
    return {
      layout: {
        font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        colorway: [1, 2, 3, 4, 5, 6].map((n) => colour("series-" + n)),
        xaxis: axis, yaxis: axis,
        margin: { l: 8, r: 8, t: 12, b: 8 },
        legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
        hoverlabel: { bgcolor: colour("page"), bordercolor: colour("line"), font },
        barcornerradius: 2,
      },
    };
  }

  function draw(plot) {
    const spec = resolved(JSON.parse(document.getElementById(plot.dataset.figure).textContent));
    // A finger that moves down the page scrolls it: only a mouse draws a zoom window.
    const layout = {
      ...spec.layout, template: template(), height: plot.clientHeight,
      dragmode: narrow() ? false : "zoom",
    };
    const config = {
      responsive: true, displaylogo: false, displayModeBar: false, showTips: false,
      doubleClick: "reset", scrollZoom: false,
    };
    return window.Plotly.react(plot, spec.data, layout, config).then(() => {
      plot.dataset.drawn = "yes";
    });
  }

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  async function load() {
    const packed = document.getElementById("plotly");
    if (!packed || !window.DecompressionStream) return;
    const script = document.createElement("script");
    script.textContent = await unpacked(packed.textContent);
    packed.remove();
    document.head.append(script);
    const plots = [...document.querySelectorAll(".plot")];
    for (const plot of plots) plot.replaceChildren();
    await Promise.all(plots.map(draw));
    root.dataset.ready = "yes";
  }

  function redraw() {
    if (window.Plotly) document.querySelectorAll(".plot[data-drawn]").forEach(draw);
  }

  // Long tables are open in the page, so that they can be read without scripts.
  if (narrow()) {
    document.querySelectorAll("details.folds-if-narrow").forEach((one) => { one.open = false; });
  }

  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  }
  function label() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", "Switch to " + (isDark() ? "light" : "dark") + " colours");
  }
  button.hidden = false;
  label();
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
    redraw();
  });
  system.addEventListener("change", () => { label(); redraw(); });
  load();
})();
