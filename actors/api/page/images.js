/** The images of the next message: chosen, pasted or dropped. They are made smaller, because the browser keeps them with the chat. */

import { byId, h, iconButton, toast } from "./dom.js";

/** The longest side in pixels: more than most models see. */
const LONGEST = 1280;
const MOST = 8;
const list = byId("attached");
const input = byId("image-file");
/** Data URLs. */
let images = [];
let onChange = () => {};

/** `changed()` is called when images come or go. */
export function setUpImages(changed) {
  onChange = changed;
  byId("attach").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    addAll(input.files);
    input.value = "";
  });
  byId("prompt").addEventListener("paste", (event) => addFrom(event, event.clipboardData));
  const main = byId("main");
  main.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
  main.addEventListener("drop", (event) => addFrom(event, event.dataTransfer));
}

/** Shows or hides the button, for models that take images or do not. */
export function allowImages(allowed) {
  byId("attach").hidden = !allowed;
}

export const hasImages = () => images.length > 0;

/** Takes the images of the message that is sent. */
export function takeImages() {
  const taken = images;
  images = [];
  show();
  return taken;
}

/** A row of thumbnails. */
export function thumbnails(urls) {
  return h("div", { class: "thumbnails" }, ...urls.map((src) => h("img", { src, alt: "Image" })));
}

function addFrom(event, data) {
  const files = [...(data?.files ?? [])].filter(({ type }) => type.startsWith("image/"));
  if (!files.length || byId("attach").hidden) return;
  event.preventDefault();
  addAll(files);
}

async function addAll(files) {
  for (const file of files) {
    if (images.length >= MOST) return toast(`A message can have ${MOST} images.`);
    try {
      images.push(await smaller(file));
    } catch {
      toast(`${file.name || "The file"} is not an image that this browser can read.`);
    }
    show();
  }
}

async function smaller(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  const canvas = h("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  // Drawings with few colors are smaller as PNG, and stay sharp.
  const [png, jpeg] = [canvas.toDataURL("image/png"), canvas.toDataURL("image/jpeg", 0.85)];
  return png.length <= jpeg.length ? png : jpeg;
}

function show() {
  const item = (src, index) => {
    const remove = () => {
      images.splice(index, 1);
      show();
    };
    return h("div", { class: "thumbnail" }, h("img", { src, alt: `Image ${index + 1}` }), iconButton("close", "Remove the image", remove));
  };
  list.replaceChildren(...images.map(item));
  list.hidden = images.length === 0;
  onChange();
}
