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
        "jobs": [], "match": "", "user": None, "totals": job("", sessions=0, live=0) | {"jobs": 0}, "lists": {},
    }
    return {**whole, **changes}


def job(label, **changes):
    return {"label": label, "uid": 0, "sessions": 3, "away": 0, "live": 3, "stale": 0, "stale_ranks": 0, "samples_per_s": 1.5,
            "wait_share": None, "memory_used_bytes": 1 << 20, "memory_denied_bytes": 0, "slowest_session": None,
            "slowest_work_s": None, **changes}


def session(number, label="job"):
    return {"id": number, "pid": number, "uid": 0, "label": label, "age_ms": 5, "bytes_owned": 0, "device": "",
            "connected": True}


def rows_of(first, rows, all_of_them):
    return {"from": first, "rows": rows, "matching": all_of_them, "all": all_of_them}


def training(number, label="job", **changes):
    return {"session": number, "label": label, "uid": 0, "member": False, "rank": -1, "world": 0, "device": "", "steps": 1, "steps_per_s": 1.0,
            "samples_per_s": 1.0, "compute_share": 0.5, "wait_share": 0.25, "comm_share": 0.25, "share_of_group": None, "loss": None,
            "stale": False, **changes}


def group(number, name="world", **changes):
    return {"id": number, "arena_id": 1, "name": name, "world": 2, "joined": 2, "epoch": 1, "state": "complete", "dead_ranks": [], **changes}


def arena(number, name="arena"):
    return {"id": number, "name": name, "uid": 0, "bytes": 1 << 20, "bytes_committed": 1 << 20, "bytes_used": 0, "bytes_quarantined": 0, "sessions": 1}


def event(number, text="something"):
    return {"number": number, "unix_ms": 1_700_000_000_000, "level": "info", "text": f"{text} {number}"}


def waiting(number):
    return {"arena_id": 1, "arena": "job", "group_id": number, "group": f"g{number}", "operation": "allreduce", "bytes": 4, "waited_ms": 2000,
            "waiting_ranks": [0], "late": [{"rank": 1, "session": 9, "pid": 4711}]}


def shard(number):
    return {"arena_id": 1, "id": number, "name": f"job/s{number}", "state": "here", "bytes": 5, "home_arena": "job", "home_device": "", "readers": 1, "moves": 0}


def host(number):
    return {"name": f"h{number}", "self": False, "state": "up", "state_ms": 9, "incarnation": 1, "pool": "p", "fence": ""}


def device(number):
    return {"name": f"gpu{number}", "kind": "gpu", "gflops": 1.0, "vgpu_share_percent": 100, "vgpu_memory_bytes": 1, "bytes_used": 5, "bytes_denied": 6,
            "link_gbytes_per_s": 32.0, "link_latency_ns": 400, "faults": ""}


def vgpu(number):
    return {"name": f"v{number}", "gpu": "0", "quota_bytes": 2, "target_bytes": 1, "used_bytes": 1, "peak_bytes": 1, "share_percent": 50, "denied": 2,
            "denied_bytes": 1, "processes": []}


def path(number):
    return {"group": number, "from": 0, "to": 1, "bytes_per_s": 1e9, "slow_bytes_per_s": 1e9, "latency_ns": 100.0}


def cache(number):
    return {"arena_id": number, "name": f"c{number}", "readers": 1, "hits": 1, "misses": 1, "stall_ns": 1, "bytes_used": 1, "quota_bytes": 1,
            "target_bytes": 1, "bytes_refetched": 0, "bytes_refetched_near": 0}


def load(number):
    return {"name": f"cpu{number}", "busy": 0.5, "memory_total_bytes": 1, "memory_used_bytes": 1, "description": "d", "stale": False}


# Of each table what a picture has that shows these.
LISTS = {
    "arenas": lambda ns: {"arenas": [arena(n, f"arena{n}") for n in ns]},
    "hosts": lambda ns: {"cluster": {"cluster": "c", "trouble": "", "hosts": [host(n) for n in ns]}},
    "devices": lambda ns: {"devices": [device(n) for n in ns]},
    "load": lambda ns: {"telemetry": {"training": [], "devices": [load(n) for n in ns], "paths": []}},
    "paths": lambda ns: {"telemetry": {"training": [], "devices": [], "paths": [path(n) for n in ns]}},
    "waiting": lambda ns: {"waiting": [waiting(n) for n in ns]},
    "job-list": lambda ns: {"jobs": [job(f"job{n}") for n in ns]},
    "groups": lambda ns: {"groups": [group(n, f"g{n}") for n in ns]},
    "training": lambda ns: {"telemetry": {"training": [training(n) for n in ns], "devices": [], "paths": []}},
    "sessions": lambda ns: {"sessions": [session(n) for n in ns]},
    "shards": lambda ns: {"shards": [shard(n) for n in ns]},
    "caches": lambda ns: {"status": {**picture(0)["status"], "caches": [cache(n) for n in ns]}},
    "vgpu-list": lambda ns: {"vgpus": [vgpu(n) for n in ns]},
    # The page shows the newest first.
    "event-list": lambda ns: {"events": [event(n) for n in reversed(ns)]},
    "decision-list": lambda ns: {"decisions": [decision(n) for n in reversed(ns)]},
    "alarms": lambda ns: {"status": {**picture(0)["status"], "alarms": [f"alarm {n}" for n in ns]}},
}


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
        # As when a person comes back to the page: it does not wait for its next second.
        self.browser.run("document.dispatchEvent(new Event('visibilitychange'))")
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
        self.asked_for("user=0")
        self.show(jobs=[job("a & b")], match="a & b", user=0, lists={"jobs": rows_of(0, 1, 1)})
        self.seen()
        self.assertEqual([row[0] for row in self.browser.table("job-list")], ["a & b"])
        self.assertEqual(self.focus(), "a & b")
        self.assertEqual(self.text("filtered-text"), "Only what is of job a & b of user 0.")
        # The focus is on the job's button.
        self.browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        wait_for(lambda: "user=0" not in self.server.queries[-1], "a question for all")
        self.assertEqual(self.browser.run("return document.getElementById('filter').value"), "")
        self.browser.run("document.querySelector('button.job').click()")
        self.asked_for("user=0")
        # What is written there is a text again.
        self.browser.driver.find_element("id", "filter").send_keys("c")
        wait_for(lambda: self.server.queries[-1].split("&")[1:] == ["match=a%20%26%20bc"], "a text alone")

    def test_jobs_of_two_users_and_of_no_label_are_told_apart(self):
        self.show(jobs=[job(""), job("cat", uid=1000), job("cat", uid=1001)])
        self.seen()
        self.assertEqual([row[:2] for row in self.browser.table("job-list")], [["(no label)", "0"], ["cat", "1000"], ["cat", "1001"]])
        for number, (match, user) in enumerate([("", 0), ("cat", 1000), ("cat", 1001)]):
            self.browser.run("document.querySelectorAll('button.job')[arguments[0]].click()", number)
            wanted = ([f"match={match}"] if match else []) + [f"user={user}"]
            wait_for(lambda: self.server.queries[-1].split("&")[1:] == wanted, f"a question with {wanted}")

    def test_a_filter_says_what_it_leaves_and_how_to_end_it(self):
        everything = {"lists": {"jobs": rows_of(0, 2, 2)}, "jobs": [job("a"), job("b")]}
        nothing = {"lists": {name: {"from": 0, "rows": 0, "matching": 0, "all": 2} for name in ("jobs", "sessions", "groups")}}
        self.show(**everything)
        self.seen()
        field = self.browser.driver.find_element("id", "filter")
        line = self.browser.driver.find_element("id", "filtered")
        self.assertFalse(line.is_displayed())
        for end in (lambda: self.browser.driver.find_element("id", "filter-clear").send_keys(Keys.ENTER), lambda: field.send_keys(Keys.ESCAPE)):
            field.send_keys("zz")
            self.asked_for("match=zz")
            self.show(**nothing, match="zz")
            self.seen()
            self.assertEqual(self.text("filtered-text"), 'Nothing matches "zz".')
            self.assertTrue(line.is_displayed())
            end()
            wait_for(lambda: "match" not in self.server.queries[-1], "a question without a text")
            self.show(**everything)
            self.seen()
            self.assertFalse(line.is_displayed())
            self.assertEqual(self.browser.run("return [document.activeElement.id, document.activeElement.value]"), ["filter", ""])

    def test_a_text_longer_than_any_name_is_no_trouble(self):
        field = self.browser.driver.find_element("id", "filter")
        self.browser.run("arguments[0].value = String.fromCodePoint(0x1F980).repeat(200); arguments[0].dispatchEvent(new Event('input'))", field)
        wait_for(lambda: len(self.server.queries[-1]) > 1000, "its question")
        self.assertEqual(self.browser.run("return arguments[0].maxLength", field), 256)
        # Half of a letter, as a browser may cut it there.
        self.browser.run("arguments[0].value = 'a' + String.fromCharCode(0xd83e); arguments[0].dispatchEvent(new Event('input'))", field)
        wait_for(lambda: "match=a%EF%BF%BD" in self.server.queries[-1], "its question")
        self.show()
        self.seen()

    def rows(self, name):
        return self.browser.run("const list = document.getElementById(arguments[0]); return [...(list.tBodies ? list.tBodies[0].rows : list.children)]", name)

    def test_what_is_looked_at_survives_an_update_of_each_list(self):
        for name, of in LISTS.items():
            with self.subTest(name):
                self.show(**of([3, 2, 1]))
                self.seen()
                rows = self.rows(name)
                self.assertEqual(len(rows), 3)
                # In the middle one the focus, by way of what can have it, and a selection.
                self.browser.run("""
                    const row = arguments[0], text = row.querySelector('td, summary') || row;
                    let one = row.querySelector('button, summary');
                    if (!one) { one = row; row.tabIndex = -1; }
                    one.focus();
                    window.one = one;
                    getSelection().selectAllChildren(text);""", rows[1])
                selected = self.browser.run("return getSelection().toString()")
                self.assertNotEqual(selected, "")
                # A new one before it, one that goes, another order.
                for numbers in ([4, 3, 2, 1], [4, 2, 1], [1, 2, 4], [2, 5]):
                    self.show(**of(numbers))
                    self.seen()
                    self.assertTrue(self.browser.run("return document.activeElement === window.one"), f"the focus in {numbers}")
                    self.assertEqual(self.browser.run("return getSelection().toString()"), selected)
                    now = self.rows(name)
                    self.assertEqual(len(now), len(numbers))
                    self.assertEqual(now[numbers.index(2)], rows[1])
                # When it goes itself, the keyboard goes on from there.
                self.show(**of([5]))
                self.seen()
                self.assertNotEqual(self.browser.run("return document.activeElement.tagName"), "BODY" if name != "alarms" else "")
                self.show()
                self.seen()

    def test_a_list_that_was_scrolled_stays_at_its_row_while_others_come(self):
        for name, of in LISTS.items():
            if name in ("decision-list", "alarms"):
                continue  # they are as long as they are
            with self.subTest(name):
                numbers = list(range(60, 0, -1))
                self.show(**of(numbers))
                self.seen()
                place = """
                    const box = document.getElementById(arguments[0]).closest('.scroll'), row = arguments[1];
                    return row.getBoundingClientRect().top - box.getBoundingClientRect().top;"""
                row = self.rows(name)[30]
                self.browser.run("document.getElementById(arguments[0]).closest('.scroll').scrollTop = 400", name)
                before = self.browser.run(place, name, row)
                self.show(**of([62, 61] + numbers))
                self.seen()
                self.assertAlmostEqual(self.browser.run(place, name, row), before, delta=2)
                self.show(**of(numbers[2:]))
                self.seen()
                self.assertAlmostEqual(self.browser.run(place, name, row), before, delta=2)
                self.show()
                self.seen()

    def test_arenas_keep_their_colours_and_neighbours_have_others(self):
        def colours(numbers):
            self.show(arenas=[arena(n) for n in numbers])
            self.seen()
            return self.browser.run("return [...document.querySelectorAll('#pool-bar rect')].map((box) => box.getAttribute('fill'))")
        before = colours([2, 10, 18, 26])  # numbers are given to sessions and groups as well
        self.assertEqual(len(set(before)), 4)
        self.assertEqual(colours([10, 26]), [before[1], before[3]])

    def test_an_open_decision_keeps_its_place_and_what_is_selected_in_it(self):
        self.show(decisions=[decision(1), decision(2)])
        self.seen()
        self.browser.run("""
            const node = document.querySelector('details[data-id="1"]');
            node.open = true;
            node.querySelector('pre').focus();
            getSelection().selectAllChildren(node.querySelector('pre'));""")
        for newest in (3, 4):
            self.show(decisions=[decision(n) for n in range(1, newest + 1)])
            self.seen()
            self.assertIn("0.5 -> 0.25", self.browser.run("return getSelection().toString()"))
            self.assertEqual(self.browser.run("return document.activeElement.tagName"), "PRE")
            self.assertEqual(self.browser.run("return document.querySelectorAll('details[open]').length"), 1)

    def test_a_screen_reader_hears_of_what_happens_and_not_of_each_second(self):
        heard = lambda: self.text("aloud")
        for uptime in (6000, 7000):
            self.show(status={**picture(0)["status"], "uptime_ms": uptime})
            self.seen()
            self.assertEqual(heard(), "fabricd answers")
        self.assertIn("up 7.0 s", self.text("state"))
        self.assertIsNone(self.browser.run("return document.getElementById('state').closest('[role=status], [aria-live]')"))
        self.show(daemon={"answers": False, "since_unix_ms": 1, "socket": "/s", "error": "no fabricd answers at /s"})
        self.seen()
        self.assertIn("no fabricd answers at /s", heard())

    def test_everything_has_a_name_and_nothing_moves_by_itself(self):
        whole = {key: value for of in LISTS.values() for key, value in of([2, 1]).items()}
        self.show(**{**whole, "telemetry": {"training": [training(1)], "devices": [load(1)], "paths": [path(1)]},
                     "status": {**whole["status"], "caches": [cache(1)]}})
        self.seen()
        self.browser.driver.execute_cdp_cmd("Accessibility.enable", {})
        tree = self.browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        roles = {}
        for node in tree:
            if node.get("ignored"):
                continue
            role, name = node["role"]["value"], node.get("name", {}).get("value", "")
            roles.setdefault(role, []).append(name)
        for role in ("button", "link", "searchbox", "table", "navigation", "img", "image", "region", "columnheader", "DisclosureTriangle", "main"):
            if role != "main":
                self.assertNotIn("", roles.get(role, []), role)
        self.assertEqual(len(roles["main"]), 1)
        self.assertEqual(len(roles["table"]), len(LISTS) - 2)  # all but the decisions and the alarms
        self.assertIn("Events", " ".join(roles["table"]))
        self.assertIn("compute 50 %, wait 25 %, comm 25 %", roles.get("image", []) + roles.get("img", []))
        # Nothing is animated, so that nothing has to be less so.
        self.assertEqual(self.browser.run("return document.getAnimations().length"), 0)
        moving = self.browser.run("""return [...document.querySelectorAll('*')].filter((node) => { const style = getComputedStyle(node);
            return style.animationName !== 'none' || style.transitionDuration !== '0s' || style.scrollBehavior === 'smooth'; }).length""")
        self.assertEqual(moving, 0)

    def test_a_list_that_is_cut_off_is_scrolled_by_the_keyboard(self):
        self.show(events=[event(n) for n in range(100)])
        self.seen()
        box = self.browser.driver.find_element("xpath", "//table[@id='event-list']/..")
        self.assertEqual([box.get_attribute(name) for name in ("tabindex", "role", "aria-label")], ["0", "region", "Events"])
        box.send_keys(Keys.PAGE_DOWN)
        wait_for(lambda: self.browser.run("return arguments[0].scrollTop", box) > 100, "it is scrolled")
        self.browser.run("document.activeElement.blur()")
        self.show(events=[event(1)])
        self.seen()
        self.assertIsNone(box.get_attribute("tabindex"))

    def test_what_has_the_focus_is_not_behind_the_header(self):
        numbers = list(range(40, 0, -1))
        for width, height in ((1280, 500), (640, 400), (320, 256)):
            self.browser.size(width, height)
            self.show(**LISTS["job-list"](numbers), decisions=[decision(n) for n in range(1, 50)])
            self.seen()
            self.browser.run("document.getElementById('event-list').focus(); scrollTo(0, 1e6); document.querySelector('details:last-child summary').focus()")
            for _ in range(12):  # upwards, towards the header
                ActionChains(self.browser.driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
                hidden = self.browser.run("""
                    const box = document.activeElement.getBoundingClientRect(), header = document.querySelector('header');
                    const is_sticky = getComputedStyle(header).position === 'sticky';
                    return is_sticky && box.top < header.getBoundingClientRect().bottom - 1 ? document.activeElement.outerHTML : '';""")
                self.assertEqual(hidden, "", (width, height))
        self.browser.size(1280)

    def test_names_look_like_what_they_are(self):
        odd = "\u202egnp.exe\u202c\u200b\x07\u2066\U0001F980"
        seen = "\\u{202E}gnp.exe\\u{202C}\\u{200B}\\u{7}\\u{2066}\U0001F980"
        self.show(jobs=[job(odd)], sessions=[session(1, odd)], arenas=[arena(1, odd)], decisions=[{**decision(1), "reason": odd}], match=odd, user=0,
                  devices=[{**device(1), "name": "\U0001F980" * 20}], status={**picture(0)["status"], "alarms": [odd]},
                  lists={"jobs": rows_of(0, 1, 1)})
        self.seen()
        self.assertEqual(self.browser.table("job-list")[0][0], seen)
        self.assertEqual(self.browser.table("sessions")[0][3], seen)
        self.assertEqual(self.browser.table("arenas")[0][0], seen)
        for name in ("alarms", "filtered-text", "decision-list", "pool-bar"):
            self.assertIn(seen, self.text(name), name)
            self.assertNotIn("\u202e", self.text(name))
        self.assertIn("\U0001F980" * 12 + "\u2026", self.text("machine"))
        # The job is asked for by its name and not by what is shown.
        self.browser.driver.find_element("css selector", "button.job").send_keys(Keys.ENTER)
        self.asked_for("match=%E2%80%AEgnp.exe%E2%80%AC%E2%80%8B%07%E2%81%A6%F0%9F%A6%80")

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
            self.show(unix_ms=1_700_000_000_000 + 1000 * self.number + later)
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
