/** Small helpers to build DOM nodes. Strings become text nodes: no text is ever parsed as HTML. */

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element. Properties that start with `on` are listeners, the others attributes; `null` and `false` leave one out. */
export function h(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** One of the symbols of `index.html`. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

export function iconButton(name, label, onclick, properties = {}) {
  const all = { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...properties };
  return h("button", all, icon(name));
}

/** A button that copies what `text()` returns, and says so for a moment. */
export function copyButton(text, label = "Copy") {
  const button = iconButton("copy", label, async () => {
    const isCopied = await copy(text());
    button.replaceChildren(icon(isCopied ? "check" : "copy"));
    announce(isCopied ? "Copied" : "The browser did not allow copying");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages without TLS have no clipboard API, except on this machine.
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const before = document.activeElement;
  const area = h("textarea", { class: "sr-only", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  before?.focus();
  return isCopied;
}

/** Says something to screen readers. */
export function announce(text) {
  byId("status").textContent = text;
}

let toastTimer;

/** Shows a short message, optionally with an action like "Undo". */
export function toast(text, label, action) {
  const node = byId("toast");
  const act = () => {
    node.hidden = true;
    action();
  };
  node.replaceChildren(text, ...(action ? [h("button", { type: "button", class: "text-button", onclick: act }, label)] : []));
  node.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (node.hidden = true), 6000);
}
