/** The choice of a model. The last choice is kept in the browser. */

import { listModels } from "./api.js";
import { byId, h } from "./dom.js";
import { read, write } from "./store.js";

const select = byId("model");

export function setUpModels() {
  select.addEventListener("change", () => write("model", select.value));
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
}
