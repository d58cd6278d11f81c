/** The choice of a model. The last choice is kept in the browser. */

import { listModels } from "./api.js";
import { byId, h } from "./dom.js";
import { allowImages } from "./images.js";
import { read, write } from "./store.js";

const select = byId("model");
/** Whether a model was not loaded when the list was read. */
let isStale = false;
/** The models that take images. */
let seeing = new Set();

export function setUpModels() {
  select.addEventListener("change", () => {
    write("model", select.value);
    allowImages(seeing.has(select.value));
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
  const takesImages = ({ architecture }) => architecture?.input_modalities?.includes("image");
  seeing = new Set(models.filter(takesImages).map(({ id }) => id));
  allowImages(seeing.has(select.value));
  isStale = models.some(({ status }) => status && status.value !== "loaded");
}

/** Reads the list again if the state of a model may have changed. */
export async function refreshStates(key) {
  if (isStale) await refreshModels(key);
}
