/** The scrolling of the messages: at the end, it stays at the end while an answer grows. */

import { byId } from "./dom.js";

const NEAR = 60;
const thread = byId("thread");
let isAtEnd = true;

export function setUpThread() {
  thread.addEventListener("scroll", () => {
    isAtEnd = thread.scrollHeight - thread.scrollTop - thread.clientHeight < NEAR;
    byId("to-end").hidden = isAtEnd;
  }, { passive: true });
  byId("to-end").addEventListener("click", scrollToEnd);
  new ResizeObserver(stickToEnd).observe(thread);
}

export function scrollToEnd() {
  isAtEnd = true;
  stickToEnd();
}

/** Follows the end, unless the reader scrolled away from it. */
export function stickToEnd() {
  if (isAtEnd) thread.scrollTop = thread.scrollHeight;
}
