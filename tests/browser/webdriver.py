"""Headless Chromium through chromedriver, spoken to in plain HTTP (the W3C WebDriver protocol)."""

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "Shift": "\ue008", "Escape": "\ue00c", "Control": "\ue009"}
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-proxy-server",
    "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]
# Opens addresses of this machine, whatever proxy the environment names.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_installed():
    return bool(shutil.which("chromedriver") and shutil.which("chromium"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Browser:
    """A browser with an empty profile and one window."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="chat-page-")
        port = free_port()
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self):
        self._wait_for_driver()
        options = {"binary": shutil.which("chromium"), "args": [*ARGUMENTS, f"--user-data-dir={self.profile}"]}
        capabilities = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "timeouts": {"script": 20_000, "pageLoad": 60_000, "implicit": 0},
        }
        started = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.url += f"/session/{started['sessionId']}"

    def _wait_for_driver(self):
        for _ in range(150):
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("chromedriver did not start")

    def _call(self, method, path, body=None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        try:
            with DIRECT.open(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise RuntimeError(f"{value['error']}: {value['message'].splitlines()[0]}") from None

    def close(self):
        try:
            if "/session/" in self.url:
                self._call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()
            shutil.rmtree(self.profile, ignore_errors=True)

    def open(self, url):
        self._call("POST", "/url", {"url": url})

    def reload(self):
        self._call("POST", "/refresh")

    def run(self, script, *arguments):
        """What a script returns, which may await promises. `arguments` are its `arguments[0]` and so on."""
        return self._call("POST", "/execute/sync", {"script": f"return (async function () {{{script}\n}}).apply(null, arguments);", "args": list(arguments)})

    def devtools(self, command, **parameters):
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def resize(self, width, height, is_phone=False):
        """The size of the page itself. Windows cannot be as narrow as a phone."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )

    def prefer(self, **features):
        """Media features such as `prefers-color-scheme`."""
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.devtools("Emulation.setEmulatedMedia", features=listed)

    def element(self, selector):
        return self._call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self._call("POST", f"/element/{self.element(selector)}/click")

    def type(self, selector, text):
        self._call("POST", f"/element/{self.element(selector)}/value", {"text": text})

    def press(self, *keys):
        """Presses keys together, in the element that has the focus."""
        codes = [KEYS.get(key, key) for key in keys]
        actions = [{"type": "keyDown", "value": code} for code in codes]
        actions += [{"type": "keyUp", "value": code} for code in reversed(codes)]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def wait(self, script, *arguments, seconds=30):
        """Waits until a JavaScript expression is true, and returns its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run(f"return {script};", *arguments)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {script}")

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._call("GET", "/screenshot")))

    def console(self):
        """Messages of the console since the last call."""
        return [f"{entry['level']}: {entry['message']}" for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def requests(self):
        """Addresses of the requests since the last call."""
        entries = self._call("POST", "/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
