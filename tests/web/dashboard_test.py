"""The dashboard in a browser, over a daemon that runs."""

import os
import re
import resource
import signal
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

from pathlib import Path

from browser import Browser
from programs import BUILD, Daemon, Dashboard, answers, die_with_parent, wait_for

import fabricshm
import fabricshm.data
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

HOSTILE = "<img src=x onerror=document.title='owned'>"


def formatted(size):
    """A size as fabricctl writes it."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{int(size)} {unit}" if size == int(size) else f"{size:.1f} {unit}"


# Elements whose text has too little contrast to what is behind it.
FAINT = """
    const colour = (text) => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
    const light = (rgb) => { const c = rgb.map((v) => { v /= 255;
        return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; };
    const back = (node) => { for (; node; node = node.parentElement) {
        const c = getComputedStyle(node).backgroundColor;
        if (!c.startsWith('rgba') ) return colour(c); } return [255, 255, 255]; };
    const is_seen_through = (node) => { for (; node; node = node.parentElement) {
        if (getComputedStyle(node).opacity !== '1') return true; } return false; };
    return [...document.querySelectorAll('h1, h2, p, td, th, a, code, figcaption, summary, button, li, text')]
        .filter((node) => node.textContent.trim() && node.getClientRects().length)
        .map((node) => { const style = getComputedStyle(node);
            const a = light(colour(node instanceof SVGElement ? style.fill : style.color)), b = light(back(node));
            return [is_seen_through(node) ? 0 : (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.outerHTML.slice(0, 80)]; })
        .filter((pair) => pair[0] < 4.5);"""


class DashboardTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--pool-capacity", "1GiB", "--arena-default-bytes", "4MiB")
        cls.daemon.start()
        cls.dashboard = Dashboard(cls.daemon)
        cls.browser = Browser()
        cls.sessions = []

    @classmethod
    def tearDownClass(cls):
        for session in cls.sessions:
            session.close()
        cls.browser.__exit__()
        cls.dashboard.__exit__()
        cls.daemon.__exit__()

    def setUp(self):
        self.browser.size(1280)
        self.browser.driver.get("about:blank")
        self.browser.driver.get(self.dashboard.address)
        self.shown("document.body.dataset.number", "a picture is shown")

    def tearDown(self):
        self.assertEqual(self.browser.console(), [])

    def session(self, label):
        session = fabricshm.Session(self.daemon.socket, label=label)
        self.sessions.append(session)
        return session

    def shown(self, expression, what):
        return wait_for(lambda: self.browser.run("return " + expression), what)

    def test_1_the_numbers_are_those_of_fabricctl(self):
        session = self.session("numbers")
        arena = session.arena("numbers", bytes=8 << 20)
        keep = arena.zeros(300_000, "float32")
        group = arena.join("workers", 0, 1)
        for _ in range(3):
            session.step(samples=64, loss=1.5, group=group)
        asked = self.daemon.ask("arenas")["arenas"]
        wait_for(lambda: len(self.browser.table("arenas")) == len(asked), "all arenas")
        asked = self.daemon.ask("arenas")["arenas"]
        expected = [[a["name"]] + [str(a[field]) for field in
                    ("id", "uid", "bytes", "bytes_committed", "bytes_used", "bytes_quarantined", "sessions")]
                    for a in asked]
        wait_for(lambda: self.browser.table("arenas") == expected, f"arenas {expected}")
        pool = self.daemon.ask("pools")["pools"][0]
        for field in ("used_bytes", "capacity_bytes"):
            node = f"document.querySelector('#pool-text [data-field={field}]')"
            self.assertEqual(self.browser.run(f"return {node}.dataset.value"), str(pool[field]))
            self.assertEqual(self.browser.run(f"return {node}.textContent"), formatted(pool[field]))
        groups = [[g["name"], str(g["arena_id"]), str(g["joined"]), str(g["epoch"]), g["state"], "-"]
                  for g in self.daemon.ask("groups")["groups"]]
        wait_for(lambda: self.browser.table("groups") == groups, f"groups {groups}")
        rows = wait_for(lambda: [row for row in self.browser.table("training") if row[0] == "numbers" and row[5] == "3"],
                        "training of the job, with its three steps")
        training = next(t for t in self.daemon.ask("top", "--count", "1")["telemetry"]["training"] if t["label"] == "numbers")
        self.assertEqual(rows[0][1:3], [str(os.getuid()), "0/1"])
        self.assertEqual(rows[0][3], str(training["session"]))
        self.assertEqual(rows[0][5], str(training["steps"]))
        self.assertEqual(float(rows[0][11]), 1.5)
        shown_version = self.browser.run("return document.getElementById('version').textContent")
        self.assertEqual(shown_version, self.daemon.ask("status")["status"]["version"])
        self.browser.picture("dashboard")
        del keep

    def test_1b_data_caches_are_those_of_fabricctl(self):
        program = BUILD / "fabricd/data/program/fabric-data"
        if not program.exists():
            self.skipTest(f"no fabric-data at {program}")
        self.assertIn("none", self.browser.run("return document.getElementById('data-text').textContent"))
        folder = Path(self.daemon.folder)
        (folder / "files").mkdir()
        for number in range(4):
            (folder / f"files/{number}").write_bytes(bytes([number]) * 300_000)
        (folder / "data.toml").write_text(
            f'[cache]\nmemory = "48MiB"\n[[silo]]\nat = "/files"\nfrom = "{folder}/files"\n')
        socket = f"{folder}/data.sock"
        with open(folder / "data.log", "wb") as log:
            service = subprocess.Popen(
                [program, "serve", "--config", folder / "data.toml", "--socket", socket, "--daemon",
                 self.daemon.socket], stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)
        try:
            wait_for(lambda: answers(socket), "fabric-data answers")
            os.environ["FABRIC_SOCKET"] = self.daemon.socket
            files = fabricshm.data.open("/files", socket=socket)
            for _ in range(3):
                self.assertEqual([bytes(files[i])[:1] for i in range(4)], [bytes([i]) for i in range(4)])
            fields = ("readers", "hits", "misses", None, "stall_ns", "bytes_used", "quota_bytes", "target_bytes",
                      "bytes_refetched", "bytes_refetched_near")

            def same():
                caches = self.daemon.ask("status")["status"]["caches"]
                rows = self.browser.table("caches")
                return len(caches) == 1 and caches[0]["hits"] > 0 and caches[0]["misses"] > 0 and [
                    row[:4] + row[5:] for row in rows] == [
                    [c["name"]] + [str(c[field]) for field in fields if field] for c in caches]
            wait_for(same, f"the cache's row in {self.browser.table('caches')}")
            self.browser.picture("data")
        finally:
            service.kill()
            service.wait()

    def test_2_names_that_clients_choose_are_text(self):
        session = self.session(HOSTILE)
        session.step(samples=1)
        arena = session.arena(HOSTILE[:40], bytes=4 << 20)
        wait_for(lambda: any(row[0] == HOSTILE for row in self.browser.table("training")), "its row")
        wait_for(lambda: any(row[0] == HOSTILE[:40] for row in self.browser.table("arenas")), "its arena")
        arena.close()
        self.assertEqual(self.browser.run("return document.images.length"), 0)
        self.assertEqual(self.browser.driver.title, "fabricd")

    def test_3_two_hundred_jobs_are_all_there_and_can_be_filtered(self):
        for number in range(200):
            self.session(f"job-{number:03}").step(samples=number)
        wait_for(lambda: len([row for row in self.browser.table("training") if row[0].startswith("job-")]) == 200,
                 "two hundred jobs")
        field = self.browser.driver.find_element("id", "filter")
        field.send_keys("job-11")
        wait_for(lambda: len(self.browser.table("training")) == 10, "ten of them")
        self.browser.picture("jobs")
        field.clear()
        field.send_keys(Keys.SPACE, Keys.BACKSPACE)
        wait_for(lambda: len(self.browser.table("training")) > 199, "all again")
        # The page keeps up with the pictures.
        first = int(self.browser.run("return document.body.dataset.number"))
        self.shown(f"Number(document.body.dataset.number) > {first + 2}", "newer pictures")

    def test_3b_jobs_are_the_sums_of_their_sessions(self):
        for number in range(3):
            self.session("summed").step(samples=number)

        def same():
            top = self.daemon.ask("top", "--count", "1")
            sessions = [s for s in top["sessions"] if s["label"] == "summed"]
            training = [t for t in top["telemetry"]["training"] if t["label"] == "summed"]
            row = [row for row in self.browser.table("job-list") if row[0] == "summed"]
            live = sum(not t["stale"] for t in training)
            wanted = ["summed", str(os.getuid()), str(len(sessions)), "0", str(live), str(len(training) - live)]
            total = self.browser.run("return document.querySelector('#jobs-text [data-field=sessions]').dataset.value")
            return len(training) == 3 and row and row[0][:6] == wanted and total == str(len(top["sessions"]))
        wait_for(same, f"the sums in {self.browser.table('job-list')}")

    def test_3c_a_click_on_a_job_shows_what_is_of_it(self):
        made = []
        for label in ("cat", "cats"):
            session = self.session(label)
            arena = session.arena(f"arena of {label}", bytes=4 << 20)
            made += [arena, arena.join("world", 0, 1)]
            session.step(samples=1, group=made[-1])
        wait_for(lambda: {"cat", "cats"} <= {row[0] for row in self.browser.table("training")}, "both jobs")
        number = next(a["id"] for a in self.daemon.ask("arenas")["arenas"] if a["name"] == "arena of cat")
        everything = len(self.browser.table("arenas"))
        self.browser.driver.find_element("xpath", "//button[@class='job'][text()='cat']").send_keys(Keys.ENTER)

        def only(table, column, value):
            wait_for(lambda: [row[column] for row in self.browser.table(table)] == [value], f"{value} alone in {table}: {self.browser.table(table)}")
        only("job-list", 0, "cat")
        only("sessions", 3, "cat")
        only("training", 0, "cat")
        only("arenas", 0, "arena of cat")
        only("groups", 1, str(number))
        self.browser.picture("job")
        self.browser.driver.find_element("id", "filter-clear").click()
        wait_for(lambda: len(self.browser.table("arenas")) >= everything, "all again")
        for one in reversed(made):
            one.close()

    def test_3d_a_filter_without_a_match_says_so(self):
        self.session("one")
        field = self.browser.driver.find_element("id", "filter")
        field.send_keys("no such job")
        self.shown("document.getElementById('filtered-text').textContent === 'Nothing matches \"no such job\".'", "that nothing matches")
        self.browser.picture("nothing")
        field.send_keys(Keys.ESCAPE)
        self.shown("document.getElementById('filtered').hidden", "all again")

    def test_4_nothing_sticks_out_on_small_and_large_screens(self):
        for width in (320, 360, 640, 1920):  # 320 and 640: a screen of 1280 at 400 % and 200 %
            self.browser.size(width)
            self.browser.driver.get("about:blank")
            self.browser.driver.get(self.dashboard.address)
            self.shown("document.body.dataset.number", "a picture")
            inner, outer = self.browser.run(
                "return [window.innerWidth, document.documentElement.scrollWidth]")
            self.assertEqual(inner, width)
            self.assertLessEqual(outer, width)
            self.browser.picture(f"width-{width}")

    def test_5_the_keyboard_reaches_everything(self):
        reached = []
        for _ in range(30):
            ActionChains(self.browser.driver).send_keys(Keys.TAB).perform()
            reached.append(self.browser.run(
                "const e = document.activeElement; return e.id || e.getAttribute('href') || e.tagName"))
            if reached[-1] == "filter":
                break
        self.assertEqual(reached[0], "#pool")  # past all links at once
        for link in ("#topology", "#jobs", "#data", "#vgpus", "#decisions", "#events", "filter"):
            self.assertIn(link, reached)
        outline = self.browser.run("return getComputedStyle(document.activeElement).outlineStyle")
        self.assertEqual(outline, "solid")

    def test_6_text_can_be_read_by_day_and_by_night(self):
        backs = []
        for scheme in ("light", "dark"):
            self.browser.scheme(scheme)
            self.assertEqual(self.browser.run(FAINT), [], scheme)
            backs.append(self.browser.run("return getComputedStyle(document.body).backgroundColor"))
            self.browser.picture(scheme)
        self.browser.scheme("light")
        self.assertNotEqual(*backs)

    def test_7_a_daemon_that_dies_is_missed_and_found_again(self):
        arena = self.session("stays").arena("stays", bytes=4 << 20)
        wait_for(lambda: self.browser.table("arenas"), "its arena")
        self.daemon.kill()
        self.shown("document.body.classList.contains('away')", "the daemon is missed")
        text = self.browser.run("return document.getElementById('state').textContent")
        self.assertIn(self.daemon.admin, text)
        # The last picture stays.
        self.assertTrue(self.browser.table("arenas"))
        for scheme in ("dark", "light"):
            self.browser.scheme(scheme)
            self.assertEqual(self.browser.run(FAINT), [], scheme)
        self.browser.picture("away")
        self.daemon.start()
        self.shown("!document.body.classList.contains('away')", "the daemon is found")
        pid = self.daemon.ask("status")["status"]["pid"]
        self.shown(f"document.getElementById('state').textContent.includes('pid {pid},')", "the new one's number")
        arena.close()

    def test_8_a_daemon_that_stands_still_is_said_and_holds_nothing_up(self):
        self.daemon.process.send_signal(signal.SIGSTOP)
        try:
            self.shown("document.body.classList.contains('away')", "the daemon is missed")
            with Dashboard(self.daemon):
                pass  # ends when it is asked to, though it waits for the daemon
        finally:
            self.daemon.process.send_signal(signal.SIGCONT)
        self.shown("!document.body.classList.contains('away')", "the daemon is found")

    def test_8b_more_sessions_than_a_picture_has_rows_for_are_all_within_reach(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 8192:
            self.skipTest(f"{hard} open files are allowed, and 8,192 are needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 8192), hard))
        many = [fabricshm.Session(self.daemon.socket, label=f"wide-{number % 200:03}") for number in range(600)]
        try:
            self.pages_of_sessions()
        finally:
            for session in many:
                session.close()

    def pages_of_sessions(self):
        ids = {str(session["id"]) for session in self.daemon.ask("sessions")["sessions"]}
        rows = len(ids)
        text = "document.querySelector('#sessions-pages span')?.textContent"
        self.shown(f"{text} === 'showing 500 of {rows}'", "the first page")
        first = self.browser.table("sessions")
        self.assertEqual(first[-1], [f"and {rows - 500} more: fabricctl sessions"])
        for width in (360, 1920):
            self.browser.size(width)
            self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), width)
            self.browser.picture(f"sessions-{width}")
        self.browser.size(1280)
        self.browser.driver.find_element("css selector", "#sessions-pages button[aria-label='next Sessions']").send_keys(Keys.ENTER)
        self.shown(f"{text} === 'showing 501 to {rows} of {rows}'", "the second page")
        second = self.browser.table("sessions")
        self.assertEqual(len(second), rows - 500)
        self.assertEqual({row[0] for row in first[:-1]} | {row[0] for row in second}, ids)
        self.shown(f"document.body.dataset.number > {self.browser.run('return document.body.dataset.number')}", "a newer picture")
        self.assertEqual(self.browser.run("return document.activeElement.getAttribute('aria-label')"), "next Sessions")
        # A job that is on no page so far.
        self.browser.driver.find_element("id", "filter").send_keys("wide-017")
        wait_for(lambda: len(self.browser.table("sessions")) == 3, "its three sessions")
        self.assertEqual({row[3] for row in self.browser.table("sessions")}, {"wide-017"})
        self.assertEqual([row[:3] for row in self.browser.table("job-list")], [["wide-017", str(os.getuid()), "3"]])

    def test_9_the_token_leaves_the_address_and_opens_the_door_alone(self):
        self.assertNotIn("#", self.browser.driver.current_url)
        base, token = re.fullmatch(r"(http://[^/]+)/#t=([0-9a-f]{32})", self.dashboard.address).groups()
        self.browser.driver.refresh()  # a page that is loaded again still has it
        self.shown("document.body.dataset.number", "a picture after a reload")

        def status(headers):
            request = urllib.request.Request(base + "/api/v1/picture", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code
        self.assertEqual(status({}), 401)
        self.assertEqual(status({"X-Fabric-Token": token[:-1] + "g"}), 401)
        self.assertEqual(status({"X-Fabric-Token": token}), 200)
        for strange in ("evil.example", "127.0.0.1:abc", "127.0.0.1:1@evil.example", "[::1]evil.example"):
            self.assertEqual(status({"X-Fabric-Token": token, "Host": strange}), 421, strange)


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
