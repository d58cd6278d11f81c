"""Drives the chat page of a running server in headless Chromium.

Usage: python3 tests/chat_page.py http://127.0.0.1:8080 [API_KEY] [--screenshots DIR]

Needs the programs `chromium` and `chromedriver`. One check talks to the model of the server, whatever it says. The others use
a server that serves the same page with scripted answers.
"""

import argparse
import array
import base64
import io
import pathlib
import sys
import traceback
import urllib.request
import wave

from browser.page import Page
from browser.scripted_server import KEY, MARKDOWN, ScriptedServer
from browser.webdriver import DIRECT, Browser, is_installed

CHECKS = []
ANSWER = ".message.assistant:last-child"
TEXT = f"{ANSWER} > .markdown"


def check(function):
    CHECKS.append(function)
    return function


def choose(page, model):
    page.browser.run("""
        const select = document.querySelector("#model");
        select.value = arguments[0];
        select.dispatchEvent(new Event("change"));""", model)


@check
def the_page_and_its_files_need_no_key_and_have_strict_headers(page):
    request = urllib.request.Request(f"{page.arguments.url}/", headers={"accept": "text/html"})
    with DIRECT.open(request) as answer:
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy, policy


@check
def the_model_of_the_server_answers(page):
    page.browser.open(f"{page.arguments.url}/")
    if page.arguments.key:
        page.browser.wait("document.querySelector('#key-dialog').open")
        page.browser.type("#key-form input", page.arguments.key)
        page.browser.press("Enter")
    page.browser.wait("document.querySelectorAll('#model option').length > 0")
    page.browser.run("localStorage.setItem('cuelight.settings', JSON.stringify({max_tokens: '24', temperature: '0'}));")
    page.send("Why is the sky blue?", wait=False)
    page.wait(120)
    assert page.text(f"{ANSWER} .error") == "", page.text(ANSWER)
    assert page.text(TEXT), page.text(ANSWER)
    figures = page.text(f"{ANSWER} .figures")
    assert "tokens/s" in figures and "first token after" in figures and " tokens in" in figures, figures
    page.screenshot("real-answer")
    # Without its key the page was refused once.
    errors = [line for line in page.browser.console() if "401 (Unauthorized)" not in line]
    assert not errors, errors


@check
def markdown_is_rendered_while_it_streams(page):
    page.send("markdown")
    inside = TEXT
    counts = {
        "h2": 1, "h3": 1, "p > em": 1, "p > strong": 2, "del": 1, "ol": 1, "ol > li": 3, "ol ul > li": 2, "ol li .code": 1,
        ".task input:checked": 1, ".task": 2, "blockquote li": 1, "tbody tr": 2, "hr": 1, ".code": 2, "a": 3,
    }
    found = {selector: page.count(f"{inside} {selector}") for selector in counts}
    assert found == counts, {selector: (count, counts[selector]) for selector, count in found.items() if count != counts[selector]}
    link = page.browser.run("const a = document.querySelector('.markdown a'); return [a.href, a.rel, a.title, a.target];")
    assert link == ["https://example.org/a_(b)", "noopener noreferrer", "title", "_blank"], link
    assert page.text(f"{inside} > p:nth-of-type(1)").startswith("Some italics, bold, struck and inline code, snake_case_name, 2 * 3 * 4")
    assert page.text(f"{inside} tbody td") == "Small a|b"
    assert "unfinished **bold and ~~struck." in page.text(inside)
    streamed = page.browser.run("return document.querySelector(arguments[0]).innerHTML;", inside)
    page.browser.reload()
    page.browser.wait(f"document.querySelector('{inside} .code')")
    assert streamed == page.browser.run("return document.querySelector(arguments[0]).innerHTML;", inside)
    page.screenshot("desktop-light")


@check
def every_split_of_a_stream_gives_the_same_nodes(page):
    different = page.browser.run("""
        const { MarkdownView } = await import("/page/markdown.js");
        const [text] = arguments;
        const whole = document.createElement("div");
        new MarkdownView(whole).update(text, true);
        const differs = (size) => {
          const node = document.createElement("div");
          const view = new MarkdownView(node);
          for (let end = size; end < text.length; end += size) view.update(text.slice(0, end), true);
          view.update(text, true);
          return node.innerHTML !== whole.innerHTML;
        };
        return Array.from({ length: 40 }, (_, index) => index + 1).filter(differs);""", MARKDOWN)
    assert different == [], different


@check
def hostile_markdown_takes_linear_time(page):
    # Each takes a fraction of a second. With time that is quadratic in the length, the script would end at its limit of 20 s.
    lines = ["*", "*a ", "**a", "[", "[a](", "](a \"", "`", "` `` ", "_a", "https://", "> ", "- ", "- a\n* b\n", "|a", "|-",
             "#", "```\n", "~", "a\n", "***\n", "![", "a" + " " * 1000, "- a\n  - b\n"]
    texts = [line * (100_000 // len(line)) for line in lines]
    texts += ["~" * 100_000 + "`", "```" + " " * 100_000 + "`", "|a|\n|-" + " " * 100_000 + "x"]
    texts += ["|a" * 2000 + "|\n" + "|-" * 2000 + "|\n" + "|\n" * 50_000]
    for text in texts:
        page.browser.run("""
            const { MarkdownView } = await import("/page/markdown.js");
            const view = new MarkdownView(document.createElement("div"));
            view.update(arguments[0], true);
            view.update(arguments[0], false);""", text)


@check
def a_code_block_is_labelled_and_copied(page):
    page.send("markdown")
    block = f"{TEXT} > .code"
    assert page.text(f"{block} .code-head span") == "rust"
    page.browser.run("window.copied = null; navigator.clipboard.writeText = async (text) => { window.copied = text; };")
    page.browser.click(f"{block} button")
    copied = page.browser.wait("window.copied")
    assert copied == 'fn main() {\n    println!("<b>Hello</b> & good day");\n}', copied
    page.browser.run("window.copied = null;")
    page.browser.click(f"{ANSWER} [title='Copy the answer']")
    assert page.browser.wait("window.copied").startswith("# A heading")


@check
def hostile_text_stays_text(page):
    page.send("hostile <img src=x onerror='window.hacked=20'>")
    page.browser.reload()
    page.browser.wait(f"document.querySelector('{ANSWER} .code')")
    assert page.browser.run("return window.hacked ?? null;") is None
    for selector in ["img", "script:not([src])", "iframe", "style", "[onerror]", "#messages svg:not(.icon)"]:
        assert page.count(selector) == 0, selector
    links = page.browser.run("return [...document.querySelectorAll('.markdown a')].map((a) => a.getAttribute('href'));")
    assert links == ["https://evil.example/pixel.png", "https://example.org/safe"], links
    assert "window.hacked=2</script>" in page.text(ANSWER)
    page.browser.run("document.querySelectorAll('.markdown span').forEach((node) => node.click());")
    assert page.browser.run("return window.hacked ?? null;") is None


@check
def reasoning_is_open_while_it_grows_and_folded_after(page):
    page.send("reason", wait=False)
    page.browser.wait("document.querySelector('.live .reasoning[open]:not([hidden])')?.innerText.length > 20")
    page.screenshot("reasoning")
    page.wait()
    details = f"{ANSWER} .reasoning"
    assert page.browser.run("return document.querySelector(arguments[0]).open;", details) is False
    assert page.text(f"{details} summary").startswith("Thought for"), page.text(details)
    assert page.text(TEXT) == "It is 42."
    page.browser.click(f"{details} summary")
    assert page.text(f"{details} strong") == "hard"
    page.send("what?")
    sent = page.server.bodies[-1]["messages"]
    assert [message["content"] for message in sent] == ["reason", "It is 42.", "what?"], sent


@check
def a_tool_call_is_a_card(page):
    page.send("tool")
    assert page.text(f"{ANSWER} .call-name") == "get_weather"
    assert page.text(f"{ANSWER} .call code") == '{\n  "city": "Berlin",\n  "unit": "<b>celsius</b>"\n}'
    page.screenshot("tool-call")


@check
def an_answer_can_be_stopped(page):
    for stop in [lambda: page.browser.click("#send"), lambda: page.browser.press("Escape")]:
        before = len(page.server.disconnected)
        page.send("slow", wait=False)
        page.browser.wait("document.querySelector('.live > .markdown p')?.innerText.length > 20")
        stop()
        page.wait(10)
        assert "word word" in page.text(TEXT)
        assert page.text(f"{ANSWER} .figures").startswith("stopped"), page.text(f"{ANSWER} .figures")
        for _ in range(100):
            if len(page.server.disconnected) > before:
                break
            page.browser.run("return new Promise((done) => setTimeout(done, 50));")
        assert len(page.server.disconnected) == before + 1, "the server still writes"
    assert page.browser.run("return document.activeElement.id;") == "prompt"


@check
def an_answer_is_generated_again(page):
    page.send("hello")
    before = page.text(TEXT)
    page.browser.click(f"{ANSWER} [title='Answer again']")
    page.wait()
    after = page.text(TEXT)
    assert before != after and after.startswith("You said: hello"), (before, after)
    assert (page.count(".message"), len(page.server.bodies[-1]["messages"])) == (2, 1)


@check
def a_question_is_edited_and_sent_again(page):
    page.send("first")
    page.send("second")
    page.browser.click(".message.user [title='Edit and send again']")
    page.browser.run("document.querySelector('.edit-text').value = '';")
    page.browser.type(".edit-text", "other")
    page.browser.press("Enter")
    page.wait()
    assert page.count(".message") == 2 and page.text(".bubble") == "other"
    assert page.text(TEXT).startswith("You said: other")
    assert page.text("#chats .chat-title") == "other"


@check
def a_question_and_a_chat_are_deleted(page):
    page.send("first")
    page.send("second")
    page.browser.click(".message.user [title^='Delete the question']")
    assert page.count(".message") == 2 and page.text(".bubble") == "second"
    page.browser.run("document.querySelector('#chats .icon-button').click();")
    assert page.count(".message") == 0 and page.count(".chat-title") == 0 and page.is_visible("#welcome")
    page.browser.click("#toast button")
    assert page.text(".bubble") == "second" and page.count(".chat-title") == 1


@check
def chats_survive_a_reload(page):
    page.send("one")
    page.browser.run("document.querySelector('#new-chat').click();")
    page.send("two")
    page.browser.reload()
    page.browser.wait("document.querySelector('.message.assistant')")
    assert page.text(".bubble") == "two" and page.count(".chat-title") == 2
    page.browser.click("#chats li:nth-child(2) .chat-title")
    assert page.text(".bubble") == "one"
    figures = page.text(f"{ANSWER} .figures")
    assert "tokens/s" in figures and "20 tokens in (16 cached), " in figures, figures


@check
def an_answer_goes_on_while_another_chat_is_shown(page):
    page.send("slow", wait=False)
    page.browser.wait("document.querySelector('.live > .markdown p')")
    page.browser.click("#new-chat")
    assert page.count(".message") == 0
    page.browser.click("#chats .chat-title")
    length = page.browser.run("return document.querySelector('.live > .markdown').innerText.length;")
    page.browser.wait("document.querySelector('.live > .markdown').innerText.length > arguments[0]", length)
    page.browser.press("Escape")
    page.wait()


@check
def errors_are_the_messages_of_the_server(page):
    page.send("busy")
    error = page.text(f"{ANSWER} .error p")
    assert error == "The queue is full. The server asks to wait 7 s.", error
    page.send("wrong")
    assert page.text(f"{ANSWER} .error p") == "temperature must be at most 2"
    page.screenshot("errors")
    page.send("fault")
    assert page.text(f"{ANSWER} .error p") == "The engine was restarted."
    assert "You said: fault" in page.text(ANSWER)
    count = len(page.server.bodies)
    page.browser.click(f"{ANSWER} .error button")
    page.wait()
    assert len(page.server.bodies) == count + 1
    page.browser.console()


@check
def the_key_is_asked_for_and_kept(page):
    page.server.needs_key = True
    page.browser.reload()
    page.browser.wait("document.querySelector('#key-dialog').open")
    assert page.text("#key-message") == "A valid API key is required."
    for key in ["wrong", KEY]:
        page.browser.type("#key-form input", key)
        page.browser.press("Enter")
        if key == "wrong":
            page.browser.wait("document.querySelector('#key-dialog').open")
    page.browser.wait("document.querySelectorAll('#model option').length > 0")
    page.browser.reload()
    page.browser.wait("document.querySelectorAll('#model option').length > 0")
    page.send("hello")
    assert page.text(TEXT).startswith("You said")
    page.browser.console()


@check
def settings_and_the_model_are_sent_and_kept(page):
    choose(page, "org/second")
    page.browser.click("#open-settings")
    page.browser.wait("document.querySelector('#settings').open")
    for name, value in {"system": "Be brief.", "temperature": "0.3", "top_p": "0.9", "max_tokens": "50"}.items():
        page.browser.type(f"#settings [name={name}]", value)
    page.browser.run("""
        const select = document.querySelector("#settings [name=reasoning_effort]");
        select.value = "low";
        select.dispatchEvent(new Event("input", { bubbles: true }));""")
    page.screenshot("settings")
    page.browser.click("#settings [aria-label=Close]")
    page.browser.reload()
    page.browser.wait("document.querySelectorAll('#model option').length > 0")
    page.send("hello")
    body = page.server.bodies[-1]
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    sent = {name: body[name] for name in ["model", "temperature", "top_p", "max_tokens", "reasoning_effort"]}
    expected = {"model": "org/second", "temperature": 0.3, "top_p": 0.9, "max_tokens": 50, "reasoning_effort": "low"}
    assert sent == expected and body["stream_options"]["include_usage"], body


@check
def an_image_is_attached_removed_and_sent(page):
    assert not page.is_visible("#attach"), "this model takes no images"
    choose(page, "org/seeing")
    page.browser.wait("!document.querySelector('#attach').hidden")
    attach = """
        const canvas = new OffscreenCanvas(40, 30);
        canvas.getContext("2d").fillRect(5, 5, 10, 10);
        canvas.convertToBlob().then((blob) => {
          const files = new DataTransfer();
          files.items.add(new File([blob], "a.png", { type: "image/png" }));
          const input = document.querySelector("#attach-file");
          input.files = files.files;
          input.dispatchEvent(new Event("change"));
        });"""
    for count in (1, 2):
        page.browser.run(attach)
        page.browser.wait(f"document.querySelectorAll('.thumbnail').length === {count}")
    page.browser.run("document.querySelector('.thumbnail button').click();")
    page.browser.wait("document.querySelectorAll('.thumbnail').length === 1")
    page.screenshot("image")
    page.send("what is this?")
    [image, text] = page.server.bodies[-1]["messages"][-1]["content"]
    assert image["type"] == "image_url" and image["image_url"]["url"].startswith("data:image/"), image
    assert text == {"type": "text", "text": "what is this?"}, text
    assert page.count(".message.user img") == 1


@check
def audio_is_attached_recorded_and_sent(page):
    choose(page, "org/hearing")
    page.browser.wait("!document.querySelector('#record').hidden")
    # A quarter of a second in stereo at 8 kHz.
    page.browser.run("""
        const samples = new Int16Array(4000).map((_, index) => 8000 * Math.sin(index / 5));
        const header = new Uint32Array([0x46464952, 36 + 8000, 0x45564157, 0x20746d66, 16, 0x00020001, 8000, 32000, 0x00100004, 0x61746164, 8000]);
        const files = new DataTransfer();
        files.items.add(new File([header, samples], "a.wav", { type: "audio/wav" }));
        files.items.add(new File(["no audio"], "b.wav", { type: "audio/wav" }));
        const input = document.querySelector("#attach-file");
        input.files = files.files;
        input.dispatchEvent(new Event("change"));""")
    page.browser.wait("document.querySelectorAll('.thumbnail audio').length === 1")
    page.browser.wait("document.querySelector('#toast').textContent.includes('b.wav is not audio')")
    page.browser.click("#record")
    page.browser.wait("document.querySelector('#record.recording')")
    page.browser.run("await new Promise((resolve) => setTimeout(resolve, 500));")
    page.browser.click("#record")
    page.browser.wait("document.querySelectorAll('.thumbnail audio').length === 2")
    page.screenshot("audio")
    page.send("what is said?")
    *clips, text = page.server.bodies[-1]["messages"][-1]["content"]
    assert text == {"type": "text", "text": "what is said?"}, text
    for clip in clips:
        assert clip["type"] == "input_audio" and clip["input_audio"]["format"] == "wav", clip
    file, recording = [base64.b64decode(clip["input_audio"]["data"]) for clip in clips]
    with wave.open(io.BytesIO(file)) as sound:
        assert (sound.getnchannels(), sound.getframerate(), sound.getsampwidth()) == (1, 16000, 2), sound.getparams()
        assert abs(sound.getnframes() - 4000) < 50, sound.getnframes()
        loudest = max(abs(sample) for sample in array.array("h", sound.readframes(sound.getnframes())))
        assert 6000 < loudest < 9000, loudest
    with wave.open(io.BytesIO(recording)) as sound:
        assert 3000 < sound.getnframes() < 64000, sound.getnframes()
    assert page.count(".message.user audio") == 2
    page.browser.reload()
    page.browser.wait("document.querySelectorAll('.message.user audio').length === 2")


@check
def a_new_line_is_typed_with_shift(page):
    page.screenshot("welcome")
    page.browser.type("#prompt", "two")
    page.browser.press("Shift", "Enter")
    page.browser.type("#prompt", "lines")
    page.browser.press("Enter")
    page.wait()
    assert page.text(".bubble") == "two\nlines"


@check
def the_theme_follows_the_system_and_the_button(page):
    light = page.color()
    page.browser.prefer(prefers_color_scheme="dark")
    dark = page.color()
    assert light != dark
    page.browser.click("#theme")
    assert page.color() == light
    page.browser.reload()
    assert page.color() == light, "the choice was not kept"
    page.browser.click("#theme")
    assert page.color() == dark
    page.send("markdown")
    page.screenshot("desktop-dark")


@check
def the_page_fits_a_phone(page):
    page.browser.resize(360, 740, is_phone=True)
    page.browser.reload()
    page.browser.wait("document.querySelectorAll('#model option').length > 0")
    page.screenshot("phone-welcome")
    page.send("markdown")
    assert page.overflow() <= 0, page.overflow()
    page.screenshot("phone-end")
    page.browser.run("document.querySelector('#thread').scrollTop = 0;")
    page.screenshot("phone")
    for question in ["tool", "hostile", "busy", "x" * 300]:
        page.send(question)
        assert page.overflow() <= 0, (question, page.overflow())
    page.screenshot("phone-error")
    assert not page.is_visible("#new-chat")
    page.browser.click("#open-drawer")
    page.browser.wait("document.activeElement.id === 'new-chat'")
    page.browser.run("return Promise.all(document.getAnimations().map((animation) => animation.finished.catch(() => null))).then(() => 1);")
    page.screenshot("phone-drawer")
    page.browser.press("Escape")
    page.browser.wait("document.activeElement.id === 'open-drawer'")
    page.browser.console()


@check
def the_view_follows_the_end_only_if_the_reader_is_there(page):
    page.browser.resize(1280, 500)
    page.send("markdown")
    top = "document.querySelector('#thread').scrollTop"
    gap = "(document.querySelector('#thread').scrollHeight - document.querySelector('#thread').clientHeight)"
    assert page.browser.run(f"return {gap} - {top} < 3;")
    page.send("slow", wait=False)
    page.browser.wait("document.querySelector('.live > .markdown p')?.innerText.length > 100")
    page.browser.run(f"{top} = 100;")
    page.browser.wait("!document.querySelector('#to-end').hidden")
    length = page.browser.run("return document.querySelector('.live > .markdown').innerText.length;")
    page.browser.wait("document.querySelector('.live > .markdown').innerText.length > arguments[0] + 100", length)
    assert page.browser.run(f"return {top};") == 100
    page.browser.click("#to-end")
    page.browser.wait(f"{gap} - {top} < 3")
    page.browser.press("Escape")
    page.wait()


@check
def a_long_answer_stays_responsive(page):
    page.browser.run("""
        window.longest = 0;
        new PerformanceObserver((list) => {
          for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
        }).observe({ entryTypes: ["longtask"] });""")
    page.send("long")
    assert page.count(f"{TEXT} > ul") == 1500
    kept = page.browser.run("return [...document.querySelectorAll('.message > .markdown > p')].map((node) => node.innerText);")
    assert kept == [f"Paragraph {n} with bold text." for n in range(1500)]
    print(f"      (longest task: {page.browser.run('return window.longest;'):.0f} ms)")


@check
def an_empty_answer_and_a_deleted_chat_leave_no_trace(page):
    page.send("blank")
    assert page.text(TEXT) == "" and not page.is_visible(f"{ANSWER} .waiting")
    page.send("slow", wait=False)
    page.browser.wait("document.querySelector('.live > .markdown p')")
    page.browser.run("document.querySelector('#chats .icon-button').click();")
    page.wait()
    assert page.count(".chat-title") == 0 and page.count(".message") == 0


def run(page):
    failures = 0
    for function in CHECKS:
        try:
            page.reset()
            page.browser.console()
            page.browser.requests()
            function(page)
            errors = [line for line in page.browser.console() if line.startswith("SEVERE")]
            assert not errors, errors
            foreign = [url for url in page.browser.requests() if not is_own(page, url)]
            assert not foreign, foreign
            print(f"ok    {function.__name__}", flush=True)
        except Exception as error:  # noqa: BLE001: every failure is reported, then the next check runs
            failures += 1
            print(f"FAIL  {function.__name__}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
            page.screenshot(f"failed-{function.__name__}")
    return failures


def is_own(page, url):
    return url.startswith((f"{page.server.url}/", f"{page.arguments.url}/", "data:"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url", type=lambda url: url.rstrip("/"))
    parser.add_argument("key", nargs="?", default="")
    parser.add_argument("--screenshots", type=pathlib.Path)
    arguments = parser.parse_args()
    if not is_installed():
        sys.exit("chromium and chromedriver are needed")
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)
    browser = Browser()
    try:
        failures = run(Page(browser, ScriptedServer(arguments.url), arguments))
    finally:
        browser.close()
    print(f"{len(CHECKS) - failures} of {len(CHECKS)} checks of the chat page passed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
