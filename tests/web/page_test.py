"""The page with pictures of this file: what no daemon of a test has at hand (decisions, vGPUs, a
cluster, late ranks, alarms), in a browser."""

import http.server
import json
import os
import sys
import threading
import unittest
from pathlib import Path

from browser import Browser
from programs import wait_for

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

PAGE = Path(os.environ["FABRIC_SOURCE"]) / "fabricd/ctl/dashboard/page"
FILES = {"/": ("dashboard.html", "text/html"), "/dashboard.js": ("dashboard.js", "text/javascript"),
         "/dashboard.css": ("dashboard.css", "text/css"), "/favicon.svg": ("favicon.svg", "image/svg+xml")}


def decision(number, outcome="confirmed"):
    return {"id": number, "unix_ms": 1_700_000_000_000, "kind": "shares", "reason": f"reason {number}",
            "gain_share": 0.125, "outcome": outcome, "why": f"decision {number}\n  rank 0: 0.5 -> 0.25\n"}


def picture(number, **changes):
    """A whole picture, with what a test changes."""
    whole = {
        "number": number, "unix_ms": 1_700_000_000_000 + 1000 * number,
        "daemon": {"answers": True, "since_unix_ms": 1_700_000_000_000, "socket": "/s", "error": ""},
        "status": {"version": "1.2.3", "pid": 7, "uptime_ms": 5000, "draining": False, "sessions": 0,
                   "alarms": [], "caches": [], "pool": {"backend": "dax", "description": "d", "capacity_bytes": 1 << 30,
                                          "used_bytes": 3 << 28, "machine": ""}},
        "arenas": [], "sessions": [], "groups": [], "devices": [], "waiting": [], "shards": [], "vgpus": [],
        "decisions": [], "events": [], "cluster": {"cluster": "", "trouble": "", "hosts": []},
        "telemetry": {"training": [], "devices": [], "paths": []},
        "jobs": [], "match": "", "totals": job("", sessions=0, live=0) | {"jobs": 0}, "lists": {},
    }
    return {**whole, **changes}


def job(label, **changes):
    return {"label": label, "sessions": 3, "away": 0, "live": 3, "stale": 0, "stale_ranks": 0, "samples_per_s": 1.5,
            "wait_share": None, "memory_used_bytes": 1 << 20, "memory_denied_bytes": 0, "slowest_session": None,
            "slowest_work_s": None, **changes}


def session(number, label="job"):
    return {"id": number, "pid": number, "uid": 0, "label": label, "age_ms": 5, "bytes_owned": 0, "device": "",
            "connected": True}


def rows_of(first, rows, all_of_them):
    return {"from": first, "rows": rows, "matching": all_of_them, "all": all_of_them}


class FakeDashboard(http.server.ThreadingHTTPServer):
    """Serves the page's files and .picture, whose number the page asks about."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.picture = picture(1)
        self.queries = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path == "/api/v1/picture":
            now = self.server.picture
            self.server.queries.append(query)
            if now is None:
                return
            if query == f"since={now['number']}":
                self.send_response(304)
                self.end_headers()
                return
            if not query:
                now = {**now, "history": {"unix_ms": [now["unix_ms"]], "series": {"pool_used_bytes": [1.0]}}}
            self.reply(json.dumps(now).encode(), "application/json")
        elif path in FILES:
            name, kind = FILES[path]
            self.reply((PAGE / name).read_bytes(), kind)
        else:
            self.send_error(404)

    def reply(self, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = FakeDashboard()
        cls.browser = Browser()
        cls.number = 1

    @classmethod
    def tearDownClass(cls):
        cls.browser.__exit__()
        cls.server.shutdown()
        cls.server.server_close()

    def setUp(self):
        self.show()
        self.browser.driver.get("about:blank")
        self.browser.driver.get(f"http://127.0.0.1:{self.server.server_address[1]}/#t=x")
        self.seen()

    def tearDown(self):
        self.assertEqual(self.browser.console(), [])

    def show(self, **changes):
        PageTest.number += 1
        self.server.picture = picture(self.number, **changes)

    def seen(self):
        wait_for(lambda: self.browser.run("return document.body.dataset.number") == str(self.number), "the picture")

    def text(self, name):
        return self.browser.run("return document.getElementById(arguments[0]).textContent", name)

    def test_a_decision_opens_by_the_keyboard_and_stays_open_while_others_come(self):
        self.show(decisions=[decision(1), decision(2)])
        self.seen()
        summaries = self.browser.driver.find_elements("css selector", "#decisions summary")
        self.assertIn("2 ", summaries[0].text)  # the newest first
        self.assertIn("12.5 % promised", summaries[0].text)
        self.browser.run("arguments[0].focus()", summaries[1])
        self.browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
        self.assertIn("0.5 -> 0.25", self.browser.driver.find_element("css selector", "details[open] pre").text)
        # One that is judged meanwhile: its element stays, with the focus.
        self.show(decisions=[decision(1, "rolled back"), decision(2)])
        self.seen()
        self.assertIn("rolled back", self.browser.driver.switch_to.active_element.text)
        self.show(decisions=[decision(1), decision(2), decision(3)])
        self.seen()
        opened = self.browser.driver.find_elements("css selector", "details[open]")
        self.assertEqual([node.get_attribute("data-id") for node in opened], ["1"])
        self.browser.picture("decisions")

    def test_alarms_stand_on_top_and_go_when_they_are_over(self):
        def hidden():
            return self.browser.run("return document.getElementById('alarms').hidden")
        self.assertTrue(hidden())
        status = picture(0)["status"]
        self.show(status={**status, "alarms": ["the disk is full", "<b>bold</b>"]})
        self.seen()
        self.assertFalse(hidden())
        self.assertEqual(self.text("alarms"), "the disk is full<b>bold</b>")
        self.show()
        self.seen()
        self.assertTrue(hidden())

    def test_late_ranks_vgpus_hosts_and_devices_are_shown(self):
        self.show(
            waiting=[{"arena": "job", "group": "world", "operation": "allreduce", "bytes": 4 << 20,
                      "waited_ms": 12300, "waiting_ranks": [0, 1, 3], "late": [{"rank": 2, "session": 9, "pid": 4711}]}],
            vgpus=[{"name": "half", "gpu": "GPU-1", "quota_bytes": 2 << 30, "target_bytes": 1 << 30, "used_bytes": 3 << 29,
                    "peak_bytes": 3 << 29, "share_percent": 50, "denied": 2, "denied_bytes": 1 << 20, "processes": [{}]}],
            cluster={"cluster": "lab", "trouble": "", "hosts": [
                {"name": "a", "self": True, "state": "up", "state_ms": 5, "incarnation": 3, "pool": "p", "fence": ""},
                {"name": "b", "self": False, "state": "lost", "state_ms": 9, "incarnation": 1, "pool": "p", "fence": "lease"}]},
            devices=[{"name": "gpu0", "kind": "gpu", "gflops": 19500.0, "vgpu_share_percent": 100, "vgpu_memory_bytes": 1 << 30,
                      "bytes_used": 5, "bytes_denied": 6, "link_gbytes_per_s": 32.0, "link_latency_ns": 400, "faults": "ecc"}])
        self.seen()
        self.assertEqual(self.browser.table("waiting"),
                         [["job", "world", "allreduce", str(4 << 20), "12300", "0, 1, 3", "2 (pid 4711)"]])
        self.assertEqual(self.browser.table("vgpu-list"),
                         [["half", "GPU-1", str(2 << 30), str(1 << 30), str(3 << 29), str(3 << 29), "50", "2", "1"]])
        self.assertEqual([row[:2] for row in self.browser.table("hosts")], [["a *", "up"], ["b", "lost"]])
        self.assertEqual(self.browser.table("devices")[0][-1], "ecc")
        machine = self.text("machine")
        for name in ("a", "b", "gpu0", "32.0 GB/s"):
            self.assertIn(name, machine)
        self.assertEqual(self.browser.run("return document.querySelectorAll('#machine rect.fault').length"), 2)
        self.browser.picture("everything")

    def test_a_table_says_how_many_rows_it_leaves_out(self):
        arena = {"id": 1, "uid": 0, "bytes": 1, "bytes_committed": 1, "bytes_used": 0, "bytes_quarantined": 0, "sessions": 1}
        self.show(arenas=[{**arena, "name": f"a{number}"} for number in range(10_000)])
        self.seen()
        rows = self.browser.table("arenas")
        self.assertEqual(len(rows), 501)
        self.assertEqual(rows[-1], ["and 9500 more: fabricctl arenas"])

    def text_of(self, selector):
        return self.browser.run("return document.querySelector(arguments[0])?.textContent", selector)

    def focus(self):
        return self.browser.run("return document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")

    def asked_for(self, part):
        return wait_for(lambda: any(part in query.split("&") for query in self.server.queries[-3:]), f"a question with {part}")

    def test_a_list_with_pages_says_what_it_shows_and_the_keyboard_turns_them(self):
        for width in (360, 1920):
            self.browser.size(width)
            self.show(sessions=[session(9500 - i, "j" * 63) for i in range(500)], jobs=[job("j" * 63)],
                      lists={"sessions": rows_of(0, 500, 9500)})
            self.seen()
            self.assertEqual(self.text_of("#sessions-pages span"), "showing 500 of 9,500")
            self.assertEqual(self.text_of("#sessions-pages code"), "fabricctl sessions")
            self.assertEqual(self.browser.table("sessions")[-1], ["and 9000 more: fabricctl sessions"])
            self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), width)
            self.browser.picture(f"pages-{width}")
        self.browser.size(1280)
        field = self.browser.driver.find_element("id", "filter")
        field.click()
        for _ in range(20):  # by way of what is between them
            ActionChains(self.browser.driver).send_keys(Keys.TAB).perform()
            if self.focus() == "next Sessions":
                break
        self.assertEqual(self.focus(), "next Sessions")
        ActionChains(self.browser.driver).send_keys(Keys.ENTER).perform()
        self.asked_for("sessions=500")
        self.show(sessions=[session(9000 - i) for i in range(500)], lists={"sessions": rows_of(500, 500, 9500)})
        self.seen()
        self.assertEqual(self.text_of("#sessions-pages span"), "showing 501 to 1,000 of 9,500")
        self.assertEqual(self.focus(), "next Sessions")
        # A list that has become shorter begins where the picture says.
        self.show(sessions=[session(i) for i in range(7)], lists={"sessions": rows_of(0, 7, 7)})
        self.seen()
        self.assertTrue(self.browser.run("return document.getElementById('sessions-pages').hidden"))
        wait_for(lambda: self.server.queries[-1] == f"since={self.number}", "no page any more")

    def test_a_job_is_opened_by_its_name_and_keeps_the_focus(self):
        self.show(jobs=[job("a & b"), job("other", stale=1, stale_ranks=1, slowest_session=17, slowest_work_s=0.25018476366666668)],
                  totals=job("", sessions=6, live=5, stale=1) | {"jobs": 2})
        self.seen()
        self.assertEqual(self.text("jobs-text"), "6 sessions of 2 jobs: 5 live, 1 stale, 0 away")
        self.assertEqual(self.browser.table("job-list")[1][-1], "session 17, 250.2 ms")
        button = self.browser.driver.find_element("css selector", "button.job")
        self.browser.run("arguments[0].focus()", button)
        # Another one comes before it, so that its row is another one, too.
        self.show(jobs=[job("new"), job("a & b"), job("other")])
        self.seen()
        self.assertEqual(self.focus(), "a & b")
        self.browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
        self.assertEqual(self.browser.run("return document.getElementById('filter').value"), "a & b")
        self.asked_for("match=a%20%26%20b")
        self.assertEqual([row[0] for row in self.browser.table("job-list")], ["a & b"])
        self.assertEqual(self.focus(), "a & b")

    def test_what_no_list_has_room_for_is_counted(self):
        event = {"number": 1, "unix_ms": 1_700_000_000_000, "level": "info", "text": "x"}
        hosts = [{"name": f"h{i}", "self": False, "state": "lost" if i == 39 else "up", "state_ms": 9, "incarnation": 1, "pool": "p",
                  "fence": ""} for i in range(40)]
        self.show(events=[event] * 60, cluster={"cluster": "lab", "trouble": "", "hosts": hosts},
                  arenas=[{"name": "a", "id": 1, "uid": 0, "bytes": 1, "bytes_committed": 1 << 28, "bytes_used": 0,
                           "bytes_quarantined": 0, "sessions": 1}],
                  lists={"events": rows_of(0, 60, 100), "hosts": rows_of(0, 40, 400), "arenas": rows_of(0, 1, 3)})
        self.seen()
        self.assertEqual(self.text_of("#event-list-pages span"), "showing 60 of 100")
        shown = [button.is_displayed() for button in self.browser.driver.find_elements("css selector", "#event-list-pages button")]
        self.assertEqual(shown, [False, False])
        machine = self.text("machine")
        self.assertIn("h39", machine)  # the one with a fault
        self.assertIn("369 more", machine)
        # The bar has what arenas take that are not in the picture: of 768 MiB one has 256.
        width = self.browser.run("return document.querySelector('#pool-bar .rest').getAttribute('width')")
        self.assertEqual(float(width), 500)

    def test_the_curve_has_a_point_for_each_picture_and_a_gap_where_the_daemon_was_away(self):
        for _ in range(2):
            self.show()
            self.seen()
        def lines():
            return self.browser.run("return [...document.querySelectorAll('#pool-curve polyline')]"
                                    ".map((line) => line.getAttribute('points').split(' ').length)")
        self.assertEqual(lines(), [3])
        gone = {"answers": False, "since_unix_ms": 1_700_000_000_000, "socket": "/s", "error": "no fabricd answers at /s"}
        self.show(daemon=gone)
        self.seen()
        self.assertIn("no fabricd answers at /s", self.text("state"))
        self.assertEqual(lines(), [3])
        for later in (100_000, 101_000):
            self.show(unix_ms=1_700_000_000_000 + later)
            self.seen()
        self.assertEqual(lines(), [3, 2])

    def test_a_dashboard_that_has_ended_is_said(self):
        self.server.picture = None  # the connection closes without an answer
        wait_for(lambda: self.browser.run("return document.body.classList.contains('away')"), "away")
        self.show()
        self.seen()
        wait_for(lambda: not self.browser.run("return document.body.classList.contains('away')"), "back")
        # The browser says what it could not load, and nothing else.
        self.assertTrue(all("net::ERR_EMPTY_RESPONSE" in line for line in self.browser.console()))


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
