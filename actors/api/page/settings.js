/** The settings of requests, the API key, and the theme. Each is kept in the browser. */

import { byId } from "./dom.js";
import { read, write } from "./store.js";

const FIELDS = ["system", "temperature", "top_p", "max_tokens", "reasoning_effort"];

/** The settings by name; an empty one is left to the server. */
export function settings() {
  return read("settings", {});
}

export function apiKey() {
  return read("key", "");
}

/** `onKey` runs when the key was changed. */
export function setUpSettings(onKey) {
  const dialog = byId("settings");
  const form = byId("settings-form");
  byId("open-settings").addEventListener("click", () => {
    fill(form, settings());
    form.elements.key.value = apiKey();
    dialog.showModal();
  });
  form.addEventListener("input", () => save(form));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close();
  });
  byId("reset-settings").addEventListener("click", () => {
    fill(form, {});
    save(form);
  });
  dialog.addEventListener("close", () => {
    const key = form.elements.key.value.trim();
    if (key === apiKey()) return;
    write("key", key || null);
    onKey();
  });
  closeOnBackdrop(dialog);
}

function fill(form, values) {
  for (const name of FIELDS) form.elements[name].value = values[name] ?? "";
}

function save(form) {
  const filled = FIELDS.filter((name) => form.elements[name].value.trim() !== "");
  write("settings", Object.fromEntries(filled.map((name) => [name, form.elements[name].value])));
}

/** A click outside of a dialog closes it. */
function closeOnBackdrop(dialog) {
  dialog.addEventListener("pointerdown", (event) => {
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    const isInside = event.clientX >= left && event.clientX <= right && event.clientY >= top && event.clientY <= bottom;
    if (event.target === dialog && !isInside) dialog.close();
  });
}

let asking = null;

/** Asks for the API key that the server requires. Resolves to whether one was given. */
export function askForKey(message) {
  asking ??= ask(message).finally(() => (asking = null));
  return asking;
}

function ask(message) {
  const dialog = byId("key-dialog");
  const form = byId("key-form");
  byId("key-message").textContent = message;
  form.elements.key.value = "";
  if (byId("settings").open) byId("settings").close();
  byId("key-cancel").onclick = () => dialog.close();
  dialog.showModal();
  return new Promise((resolve) => {
    let isGiven = false;
    const submit = (event) => {
      event.preventDefault();
      const key = form.elements.key.value.trim();
      isGiven = key !== "";
      if (isGiven) write("key", key);
      dialog.close();
    };
    form.addEventListener("submit", submit);
    const close = () => {
      form.removeEventListener("submit", submit);
      resolve(isGiven);
    };
    dialog.addEventListener("close", close, { once: true });
  });
}

const DARK = matchMedia("(prefers-color-scheme: dark)");

/** The theme follows the system until the button is pressed. */
export function setUpTheme() {
  apply(read("theme", null));
  DARK.addEventListener("change", () => apply(read("theme", null)));
  byId("theme").addEventListener("click", () => {
    const theme = shown() === "dark" ? "light" : "dark";
    const isSystems = theme === (DARK.matches ? "dark" : "light");
    write("theme", isSystems ? null : theme);
    apply(isSystems ? null : theme);
  });
}

const shown = () => document.documentElement.dataset.theme ?? (DARK.matches ? "dark" : "light");

function apply(theme) {
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  const label = shown() === "dark" ? "Use light colours" : "Use dark colours";
  byId("theme").setAttribute("aria-label", label);
  byId("theme").title = label;
}
