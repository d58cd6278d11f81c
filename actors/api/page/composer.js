/** The box in which messages are written, with its button to send or stop. */

import { byId, icon } from "./dom.js";
import { hasImages, setUpImages, takeImages } from "./images.js";

const area = byId("prompt");
const button = byId("send");
let isBusy = false;

/** `actions`: `send(text, images)`, which returns whether it took them, and `stop()`. `images()` takes the images. */
export function setUpComposer(actions) {
  const submit = () => {
    const text = area.value.trim();
    if (isBusy || !(text || hasImages()) || !actions.send(text, takeImages)) return;
    area.value = "";
    changed();
  };
  area.addEventListener("input", changed);
  setUpImages(changed);
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  button.addEventListener("click", () => (isBusy ? actions.stop() : submit()));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isBusy && !document.querySelector("dialog[open]")) actions.stop();
  });
  setBusy(false);
}

export function setBusy(value) {
  isBusy = value;
  const label = isBusy ? "Stop (Esc)" : "Send (Enter)";
  button.replaceChildren(icon(isBusy ? "stop" : "send"));
  button.setAttribute("aria-label", label);
  button.title = label;
  changed();
}

export function focusComposer() {
  area.focus();
}

function changed() {
  button.disabled = !isBusy && !area.value.trim() && !hasImages();
  if (CSS.supports("field-sizing", "content")) return;
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
