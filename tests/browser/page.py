"""The chat page in a browser, and what a reader does with it."""

DONE = "!document.querySelector('.live') && !document.querySelector('#send').title.startsWith('Stop')"


class Page:
    """The page in the browser, at the scripted server."""

    def __init__(self, browser, server, arguments):
        self.browser = browser
        self.server = server
        self.arguments = arguments

    def reset(self, size=(1280, 900)):
        """A page as a new visitor sees it."""
        self.server.needs_key = False
        self.browser.resize(*size)
        self.browser.prefer(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
        self.browser.open(f"{self.server.url}/version")
        self.browser.run("localStorage.clear(); sessionStorage.clear();")
        self.open(self.server.url)

    def open(self, url):
        self.browser.open(f"{url}/")
        self.browser.wait("document.querySelectorAll('#model option').length > 0")

    def send(self, text, wait=True):
        self.browser.type("#prompt", text)
        self.browser.press("Enter")
        if wait:
            self.wait()

    def wait(self, seconds=60):
        self.browser.wait(DONE, seconds=seconds)

    def text(self, selector):
        return self.browser.run("return document.querySelector(arguments[0])?.innerText ?? null;", selector)

    def count(self, selector):
        return self.browser.run("return document.querySelectorAll(arguments[0]).length;", selector)

    def is_visible(self, selector):
        return self.browser.run("return document.querySelector(arguments[0]).checkVisibility({visibilityProperty: true});", selector)

    def color(self):
        return self.browser.run("return getComputedStyle(document.body).backgroundColor;")

    def overflow(self):
        """By how many pixels the page is wider than its window."""
        return self.browser.run("""
            const wide = [document.documentElement, document.querySelector("#thread")];
            return Math.max(...wide.map((node) => node.scrollWidth - node.clientWidth));""")

    def screenshot(self, name):
        if self.arguments.screenshots:
            self.browser.screenshot(self.arguments.screenshots / f"{name}.png")
