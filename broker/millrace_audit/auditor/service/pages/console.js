// Keeps the page live: fetches it again and replaces its content, but keeps the scroll position.
"use strict";
const EVERY_MS = 5000;
let failed = false;

function heatScroll(to) {
  const heat = document.querySelector(".heat");
  if (heat && to !== undefined) heat.scrollLeft = to;
  return heat ? heat.scrollLeft : undefined;
}

async function look() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const read = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
    if (!read) throw new Error("no page");
    const closed = [...document.querySelectorAll("details")].map((one) => one.open);
    const scrolled = heatScroll();
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    document.getElementById("live").replaceWith(document.adoptNode(read));
    document.querySelectorAll("details").forEach((one, at) => { if (at in closed) one.open = closed[at]; });
    heatScroll(scrolled);
    if (focused) document.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    failed = false;
  } catch (error) {
    if (!failed) {
      const note = document.createElement("p");
      note.className = "trouble";
      note.textContent = "The auditor does not answer: what you see is old.";
      document.getElementById("live").prepend(note);
    }
    failed = true;
  }
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch { // no clipboard without HTTPS: select the text instead
    getSelection().selectAllChildren(button.previousElementSibling);
    if (!document.execCommand("copy")) return;
  }
  button.textContent = "Copied";
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) copy(button);
});

heatScroll(1e9); // the newest hours are at the right
setInterval(look, EVERY_MS);
