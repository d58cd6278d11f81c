/** Images as they are sent: made smaller, because the browser keeps them with the chat. */

import { h } from "./dom.js";

/** The longest side in pixels: more than most models see. */
const LONGEST = 1280;

/** The data URL of an image file. Throws if the browser cannot read it. */
export async function smaller(file) {
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
