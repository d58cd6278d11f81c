/** The list of conversations. On a narrow window it is a drawer over the page. */

import { byId, h, iconButton } from "./dom.js";
import { listChats } from "./store.js";

const NARROW = matchMedia("(max-width: 799px)");

/** Shows the conversations. `actions`: `open(id)`, `remove(id)`. */
export function showChats(currentId, actions) {
  const chats = listChats();
  const item = ({ id, title }) => {
    const isCurrent = id === currentId;
    const open = h("button", { type: "button", class: "chat-title", title, "aria-current": isCurrent ? "page" : null }, title);
    open.addEventListener("click", () => {
      closeDrawer();
      actions.open(id);
    });
    const remove = iconButton("trash", `Delete the chat “${title}”`, () => actions.remove(id));
    return h("li", { class: isCurrent ? "current" : null }, open, remove);
  };
  const none = h("li", { class: "none" }, "Chats are kept in this browser.");
  byId("chats").replaceChildren(...(chats.length ? chats.map(item) : [none]));
}

export function setUpDrawer() {
  byId("open-drawer").addEventListener("click", openDrawer);
  byId("backdrop").addEventListener("click", closeDrawer);
  byId("sidebar").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isDrawerOpen()) return;
    event.stopPropagation();
    closeDrawer();
  });
  NARROW.addEventListener("change", () => setOpen(false));
}

const isDrawerOpen = () => document.body.classList.contains("drawer-open");

function setOpen(isOpen) {
  document.body.classList.toggle("drawer-open", isOpen);
  byId("main").inert = isOpen;
  byId("open-drawer").setAttribute("aria-expanded", String(isOpen));
}

function openDrawer() {
  setOpen(true);
  byId("new-chat").focus();
}

export function closeDrawer() {
  if (!isDrawerOpen()) return;
  setOpen(false);
  byId("open-drawer").focus();
}
