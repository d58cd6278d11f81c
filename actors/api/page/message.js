/** The view of one message: a question, or an answer with its reasoning, tool calls, figures and buttons. */

import { attachmentRow } from "./attachments.js";
import { copyButton, h, iconButton } from "./dom.js";
import { MarkdownView } from "./markdown.js";

/** A view for `message`. `actions`: `edit(text)`, `regenerate()`, `remove()`. `isLive`: the answer is growing. */
export function messageView(message, actions, isLive = false) {
  return message.role === "user" ? new Question(message, actions) : new Answer(message, actions, isLive);
}

class Question {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.element = h("article", { class: "message user", "aria-label": "You" });
    this.show();
  }

  show() {
    const { message, actions } = this;
    const bar = h("div", { class: "actions" },
      copyButton(() => message.content),
      iconButton("edit", "Edit and send again", () => this.edit()),
      iconButton("trash", "Delete the question and its answer", () => actions.remove()));
    this.element.replaceChildren(...[attachmentRow(message), message.content && h("div", { class: "bubble" }, message.content), bar].filter(Boolean));
  }

  edit() {
    const area = h("textarea", { "aria-label": "Edit the message", rows: "3", class: "edit-text" });
    area.value = this.message.content;
    const send = () => area.value.trim() && this.actions.edit(area.value.trim());
    const cancel = () => {
      this.show();
      this.element.querySelector("[title^=Edit]").focus();
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        cancel();
      }
    });
    const buttons = h("div", { class: "edit-buttons" },
      h("button", { type: "button", class: "button", onclick: cancel }, "Cancel"),
      h("button", { type: "button", class: "button primary", onclick: send }, "Send"));
    this.element.replaceChildren(h("div", { class: "edit" }, area, buttons));
    area.focus();
  }

  setBusy() {}
}

class Answer {
  constructor(message, actions, isLive) {
    this.message = message;
    this.actions = actions;
    this.isLive = isLive;
    this.frame = null;
    /** When the next frame may be rendered: rendering takes at most a part of the time. */
    this.notBefore = 0;
    this.build();
    this.render();
  }

  build() {
    this.summary = h("summary", {});
    const thoughts = h("div", { class: "markdown" });
    this.reasoning = h("details", { class: "reasoning", hidden: true, open: this.isLive }, this.summary, thoughts);
    this.reasoningView = new MarkdownView(thoughts);
    this.text = h("div", { class: "markdown" });
    this.textView = new MarkdownView(this.text);
    const dots = h("div", { class: "dots", role: "img", "aria-label": "Waiting for the answer" }, h("span"), h("span"), h("span"));
    this.progress = h("small", { class: "progress" });
    this.waiting = h("div", { class: "waiting" }, dots, this.progress);
    this.calls = h("div", { class: "calls" });
    this.error = h("div", { class: "error", role: "alert", hidden: true });
    this.figures = h("span", { class: "figures" });
    this.bar = h("div", { class: "actions" },
      copyButton(() => this.message.content, "Copy the answer"),
      iconButton("retry", "Answer again", () => this.actions.regenerate()),
      iconButton("trash", "Delete the answer", () => this.actions.remove()));
    const foot = h("div", { class: "foot" }, this.bar, this.figures);
    this.element = h("article", { class: "message assistant", "aria-label": "Answer" },
      this.reasoning, this.text, this.calls, this.waiting, this.error, foot);
  }

  /** Renders soon, at most once in a frame. `after` runs then. */
  update(after) {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      const start = performance.now();
      if (start < this.notBefore) return this.update(after);
      this.render();
      this.notBefore = performance.now() + 3 * (performance.now() - start);
      after();
    });
  }

  finish() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.isLive = false;
    this.reasoning.open = false;
    this.render();
  }

  render() {
    const { message, isLive } = this;
    const isEmpty = !message.content && !message.reasoning && !message.toolCalls.length;
    this.element.classList.toggle("live", isLive);
    this.element.setAttribute("aria-busy", String(isLive));
    this.waiting.hidden = !isLive || !isEmpty;
    this.progress.textContent = progressText(message.progress);
    this.renderReasoning();
    this.textView.update(message.content, isLive);
    this.renderCalls();
    this.renderError();
    this.bar.firstChild.hidden = !message.content;
    this.figures.textContent = isLive ? "" : figures(message);
  }

  renderReasoning() {
    const { reasoning, content, toolCalls, reasoningSeconds } = this.message;
    this.reasoning.hidden = !reasoning;
    if (!reasoning) return;
    const isThinking = this.isLive && !content && !toolCalls.length;
    // Folded once, when the answer begins: it stays as the reader leaves it after that.
    if (!isThinking && this.wasThinking) this.reasoning.open = false;
    this.wasThinking = isThinking;
    const time = reasoningSeconds ? ` for ${seconds(reasoningSeconds)}` : "";
    this.summary.textContent = isThinking ? "Thinking…" : `Thought${time}`;
    this.reasoningView.update(reasoning, isThinking);
  }

  renderCalls() {
    const { toolCalls } = this.message;
    const views = [...this.calls.children];
    toolCalls.forEach((call, index) => {
      const view = views[index] ?? this.calls.appendChild(callCard());
      view.querySelector(".call-name").textContent = call.name;
      view.querySelector("code").textContent = this.isLive ? call.arguments : pretty(call.arguments);
    });
  }

  renderError() {
    const { error } = this.message;
    this.error.hidden = !error;
    if (!error) return;
    const wait = error.retryAfter === null ? "" : ` The server asks to wait ${seconds(error.retryAfter)}.`;
    const retry = h("button", { type: "button", class: "button", onclick: () => this.actions.regenerate() }, "Try again");
    this.error.replaceChildren(h("p", {}, `${error.message}${wait}`), retry);
  }

  setBusy(isBusy) {
    for (const button of this.element.querySelectorAll("[title^=Answer], .error button")) button.disabled = isBusy;
  }
}

function callCard() {
  return h("section", { class: "call", "aria-label": "Tool call" },
    h("div", { class: "call-head" }, "Tool call ", h("strong", { class: "call-name" })),
    h("pre", { tabindex: "0" }, h("code")));
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

/** How much of a prompt is read. Empty for one that takes less than a second. */
function progressText(progress) {
  if (!progress || progress.time_ms < 1000) return "";
  const share = Math.floor((100 * progress.processed) / progress.total);
  return `Reading the prompt: ${share} % of ${progress.total} tokens`;
}

/** The line under an answer. */
function figures({ stats, finish, model }) {
  const parts = [];
  const ends = { stopped: "stopped", length: "ended at the token limit", content_filter: "ended by a filter" };
  if (ends[finish]) parts.push(ends[finish]);
  if (stats?.tokensPerSecond) parts.push(`${rounded(stats.tokensPerSecond)} tokens/s`);
  if (stats?.firstTokenSeconds) parts.push(`first token after ${seconds(stats.firstTokenSeconds)}`);
  if (stats?.answerTokens !== undefined) {
    const cached = stats.cachedTokens ? ` (${stats.cachedTokens} cached)` : "";
    parts.push(`${stats.promptTokens} tokens in${cached}, ${stats.answerTokens} out`);
  }
  if (model) parts.push(model);
  return parts.join(" · ");
}

const rounded = (number) => String(Number(number.toFixed(number < 10 ? 1 : 0)));
const seconds = (number) => (number < 1 ? `${Math.round(number * 1000)} ms` : `${rounded(number)} s`);
