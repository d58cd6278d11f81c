/** The box in which messages are written, with its button to send or stop. */

import { hasAttachments, setUpAttachments, takeAttachments } from "./attachments.js";
import { byId, icon } from "./dom.js";

const area = byId("prompt");
const button = byId("send");
let isBusy = false;

/** `actions`: `send(text, attachments)`, which returns whether it took them, and `stop()`. `attachments()` takes the attachments. */
export function setUpComposer(actions) {
  const submit = () => {
    const text = area.value.trim();
    if (isBusy || !(text || hasAttachments()) || !actions.send(text, takeAttachments)) return;
    area.value = "";
    changed();
  };
  area.addEventListener("input", changed);
  setUpAttachments(changed);
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
  button.disabled = !isBusy && !area.value.trim() && !hasAttachments();
  if (CSS.supports("field-sizing", "content")) return;
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
