/** The choice of a model. The last choice is kept in the browser. */

import { listModels } from "./api.js";
import { allowAttachments } from "./attachments.js";
import { byId, h } from "./dom.js";
import { read, write } from "./store.js";

const select = byId("model");
/** Whether a model was not loaded when the list was read. */
let isStale = false;
/** What each model takes: "text", "image", "audio". */
let modalities = new Map();

export function setUpModels() {
  select.addEventListener("change", () => {
    write("model", select.value);
    allow();
  });
}

/** The chosen model, or an empty string for the server's default. */
export function chosenModel() {
  return select.value;
}

/** Reads the list of models. Throws an `ApiError`. */
export async function refreshModels(key) {
  const models = await listModels(key);
  const wanted = select.value || read("model", "");
  const option = ({ id, status }) => {
    const states = { unloaded: " (not loaded)", loading: " (loading)", failed: " (failed)" };
    return h("option", { value: id }, `${id}${states[status?.value] ?? ""}`);
  };
  select.replaceChildren(...models.map(option));
  if (models.some(({ id }) => id === wanted)) select.value = wanted;
  select.disabled = models.length === 0;
  modalities = new Map(models.map(({ id, architecture }) => [id, architecture?.input_modalities ?? []]));
  allow();
  isStale = models.some(({ status }) => status && status.value !== "loaded");
}

function allow() {
  allowAttachments(modalities.get(select.value) ?? []);
}

/** Reads the list again if the state of a model may have changed. */
export async function refreshStates(key) {
  if (isStale) await refreshModels(key);
}
