// The values under the pointer, in the legend. The page reads the same without it.
for (const svg of document.querySelectorAll("svg[data-curves]")) {
  const { left, width, x, series } = JSON.parse(svg.dataset.curves);
  const cursor = svg.querySelector(".cursor"), legend = svg.nextElementSibling;
  const outputs = [...legend.querySelectorAll("b")], when = legend.querySelector(".when");
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const share = Math.min(1, Math.max(0, (at - left) / width));
    const i = Math.round(share * (series[0].length - 1));
    cursor.setAttribute("x1", left + share * width);
    cursor.setAttribute("x2", left + share * width);
    cursor.style.visibility = "visible";
    when.textContent = "at " + (share * x.end).toFixed(x.digits) + " " + x.unit;
    outputs.forEach((b, k) => (b.textContent = series[k][i].toFixed(2) + " GiB"));
  });
}
