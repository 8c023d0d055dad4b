"""on_demand_test.py ONCE: `once serve --on-demand`: who starts the server, where it listens, and when it ends."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import struct
import subprocess

import harness
import serve_test
from harness import Case, alive, wait_until

LONG_MS = serve_test.LEASE_MS


class OnDemandCase(Case):
    def setUp(self):
        super().setUp()
        self.runtime = self.path("run")
        self.runtime.mkdir(0o700)
        self.env["XDG_RUNTIME_DIR"] = str(self.runtime)
        self.addCleanup(self.end_servers)

    def end_servers(self):
        """Of this test's folders only."""
        for path in self.dir.glob("**/*.sock"):
            with contextlib.suppress(OSError):
                os.kill(self.pid_of(path), signal.SIGKILL)

    def demand(self, *arguments, **options):
        return self.once("serve", "--on-demand", *arguments, **options)

    def socket_of(self, done):
        self.expect(done, 0, stderr=b"")
        self.assertEqual(done.stdout.count(b"\n"), 1)
        told = json.loads(done.stdout)
        self.assertEqual(list(told), ["socket"])
        return pathlib.Path(told["socket"])

    def up(self, *arguments, **options):
        return self.socket_of(self.demand(*arguments, **options))

    def place(self, *arguments, **options):
        """Where it would be."""
        return self.socket_of(self.once("serve", "--print-socket", *arguments, **options))

    @staticmethod
    def pid_of(path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(path))
            return struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

    def ask(self, path, method, target, body=None):
        client = serve_test.Client(path)
        try:
            client.request(method, target, json.dumps(body) if isinstance(body, dict) else body,
                           {"Content-Type": "application/json"} if body is not None else {})
            return serve_test.Answer(client.getresponse())
        finally:
            client.close()

    def claim(self, path, key):
        got = self.ask(path, "POST", "/v1/claims", {"key": key, "lease_ms": LONG_MS})
        self.assertEqual(got.status, 201, got.body)
        return f"/v1/claims/{got.json['claim']}"

    def complete(self, path, claim):
        self.assertEqual(self.ask(path, "POST", f"{claim}/complete", b"done").answer, "recorded")


class Starts(OnDemandCase):
    def test_the_first_starts_it_and_others_find_it(self):
        first = self.up()
        pid = self.pid_of(first)
        self.assertEqual((self.up(), self.pid_of(first)), (first, pid))
        self.assertEqual(self.place(), first)
        self.complete(first, self.claim(first, "a"))
        self.assertEqual(self.ask(first, "POST", "/v1/claims", {"key": "a"}).body, b"done")
        self.assertTrue(alive(pid))

    def test_many_at_once_start_one(self):
        for name in ("one", "two", "three"):
            store = f"sqlite:{self.dir}/{name}.db"
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                paths = set(pool.map(lambda _, store=store: self.up("--store", store), range(8)))
            self.assertEqual(len(paths), 1)
            # Servers that were started in vain would still be there: this is the only one of the store.
            pid = self.pid_of(paths.pop())
            held = [each.parent.parent.name for each in pathlib.Path("/proc").glob("[0-9]*/fd/*") if self.links_to(each, f"{name}.db")]
            self.assertEqual(set(held), {str(pid)})

    @staticmethod
    def links_to(descriptor, name):
        try:
            return os.readlink(descriptor).endswith(f"/{name}")
        except OSError:
            return False

    def test_it_leaves_its_starter(self):
        inherited, ours = os.pipe()
        os.set_inheritable(ours, True)
        leader = subprocess.Popen([harness.PROGRAM, "serve", "--on-demand"], env=self.env, cwd=self.dir, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[ours], umask=0o777,
                                  preexec_fn=lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), signal.signal(signal.SIGCHLD, signal.SIG_IGN)))
        os.close(ours)
        told, error = leader.communicate(timeout=harness.DEADLINE_S)  # Ends, as nobody holds its streams.
        self.assertEqual((leader.returncode, error), (0, b""))
        self.assertEqual(os.read(inherited, 1), b"")  # Nor another file.
        os.close(inherited)
        path = pathlib.Path(json.loads(told)["socket"])
        pid = self.pid_of(path)
        self.assertNotEqual(os.getsid(pid), os.getsid(0))
        self.assertNotIn(os.getsid(pid), (leader.pid, pid))  # No leader: a terminal that it opens is not its own.
        self.assertEqual(os.readlink(f"/proc/{pid}/cwd"), "/")
        self.assertEqual([os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)], ["/dev/null", "/dev/null", str(path.with_suffix(".log"))])
        for name in (path.name, path.stem + ".log", path.stem + ".start", "key"):
            self.assertEqual(stat.S_IMODE((path.parent / name).stat().st_mode), 0o600, name)
        self.assertEqual(self.up(), path)
        os.kill(pid, signal.SIGTERM)  # Though it was ignored.
        wait_until(lambda: not alive(pid), "it has ended")
        self.assertFalse(path.exists())

    def test_a_killed_ones_socket_is_replaced(self):
        path = self.up()
        claim = self.claim(path, "a")
        for _ in range(3):
            pid = self.pid_of(path)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not alive(pid), "it has ended")
            self.assertTrue(path.exists())
            self.assertEqual(self.up(), path)
            self.assertNotEqual(self.pid_of(path), pid)
        self.complete(path, claim)
        self.assertEqual(self.show("a")["attempt"], 1)

    def test_one_that_is_ending_is_waited_for(self):
        path = self.up()
        for _ in range(5):
            pid = self.pid_of(path)
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda pid=pid: self.next_one(path) != pid, "another one is there")

    def next_one(self, path):
        self.assertEqual(self.up(), path)
        try:
            return self.pid_of(path)
        except (ConnectionRefusedError, FileNotFoundError):  # It answered in its last moment.
            return self.next_one(path)

    def test_a_starter_that_is_killed_leaves_a_server_or_none(self):
        for name in range(10):
            store = f"sqlite:{self.dir}/{name}.db"
            starter = self.start("serve", "--on-demand", "--store", store)
            place = self.place("--store", store)
            wait_until(lambda place=place, starter=starter: place.with_suffix(".start").exists() or starter.poll() is not None, "it has begun")
            starter.kill()
            starter.wait()
            self.assertEqual(self.up("--store", store), place)
            self.complete(place, self.claim(place, "a"))

    def test_why_it_did_not_start_is_told(self):
        done = self.demand("--store", f"sqlite:{self.dir}/missing/once.db")
        self.expect(done, 243, stdout=b"", stderr=b"the server did not start: ")
        self.assertIn(b"missing/once.db", done.stderr)
        log = self.place("--store", f"sqlite:{self.dir}/missing/once.db").with_suffix(".log")
        self.assertIn(f"Its log is {log}".encode(), done.stderr)
        self.assertIn("missing/once.db", log.read_text())
        self.assertEqual(stat.S_IMODE(log.stat().st_mode), 0o600)
        self.path("missing").mkdir()
        self.up("--store", f"sqlite:{self.dir}/missing/once.db")

    def test_what_would_not_be_one_server_for_all_is_refused(self):
        for arguments, env, word in [
            (["--store", "memory:"], {}, b"memory:"), (["--unshared-store"], {}, b"--unshared-store"),
            (["--listen", "0"], {}, b"--listen"), (["--max-claims", "3"], {}, b"--max-claims"), (["--admin", "0"], {}, b"--admin"),
            (["--log", "json"], {}, b"--log"), (["--token-file", "x"], {}, b"--token-file"), (["--idle-timeout", "0s"], {}, b"--idle-timeout"),
            (["--store", f"sqlite:{self.dir}/once.db?seal_command=true"], {}, b"seal_command"), ([], {"ONCE_DISABLED": "1"}, b"ONCE_DISABLED"),
        ]:
            with self.subTest(arguments=arguments):
                self.expect(self.demand(*arguments, env=self.env | env), 64, stdout=b"", stderr=word)
        self.expect(self.once("serve", "--idle-timeout", "1s"), 64, stderr=b"--on-demand")
        nowhere = {name: value for name, value in self.env.items() if name not in ("ONCE_STORE", "HOME", "XDG_STATE_HOME")}
        self.expect(self.demand(env=nowhere), 64, stderr=b"HOME is not set")
        self.up(env=nowhere | {"ONCE_STORE": self.store})


class Ends(OnDemandCase):
    def test_it_ends_when_nobody_uses_it(self):
        path = self.up("--idle-timeout", "300ms")
        pid = self.pid_of(path)
        kept = serve_test.Client(path)  # A connection is no use of it.
        kept.connect()
        wait_until(lambda: not alive(pid), "it has ended")
        kept.close()
        self.assertFalse(path.exists())
        self.assertEqual(self.up(), path)

    def test_an_open_claim_keeps_it(self):
        path = self.up("--idle-timeout", "300ms")
        claim = self.claim(path, "a")
        pid = self.pid_of(path)
        for _ in range(2):  # Others that are idle for as long come and go meanwhile.
            other = self.up("--store", f"sqlite:{self.dir}/other.db", "--idle-timeout", "300ms")
            other_pid = self.pid_of(other)
            wait_until(lambda other_pid=other_pid: not alive(other_pid), "the other one has ended")
        self.assertTrue(alive(pid))
        self.complete(path, claim)
        wait_until(lambda: not alive(pid), "it has ended")

    def test_who_waits_keeps_it(self):
        path = self.up("--idle-timeout", "300ms")
        pid = self.pid_of(path)
        done = self.start("run", "--key", "a", "--", "sh", "-c", f"echo $$ >{self.dir}/began; exec cat {self.fifo('gate')}")
        self.pid_in("began")
        client = serve_test.Client(path)
        client.request("POST", "/v1/claims", json.dumps({"key": "a", "wait_ms": LONG_MS}), {"Content-Type": "application/json"})
        other = self.up("--store", f"sqlite:{self.dir}/other.db", "--idle-timeout", "300ms")
        other_pid = self.pid_of(other)
        wait_until(lambda: not alive(other_pid), "the other one has ended")
        self.assertTrue(alive(pid))
        self.open_gate("gate")
        self.assertEqual(serve_test.Answer(client.getresponse()).answer, "replayed")
        client.close()
        self.assertEqual(done.wait(), 0)
        wait_until(lambda: not alive(pid), "it has ended")

    def test_one_whose_store_was_replaced_gives_way(self):
        folder = self.path("data")
        for lose in (lambda: folder.rename(self.path("before")), lambda: [file.unlink() for file in folder.glob("once.db*")]):
            folder.mkdir()
            path = self.up("--store", f"sqlite:{folder}/once.db")
            pid = self.pid_of(path)
            self.claim(path, "a")  # Nobody can finish it.
            lose()
            wait_until(lambda pid=pid: not alive(pid), "it has ended")
            folder.mkdir(exist_ok=True)
            self.assertEqual(self.up("--store", f"sqlite:{folder}/once.db"), path)
            self.complete(path, self.claim(path, "b"))
            os.kill(self.pid_of(path), signal.SIGTERM)
            shutil.rmtree(folder)


class Names(OnDemandCase):
    def test_the_name_covers_what_decides_which_store_is_meant(self):
        keys = self.path("keys")
        self.expect(self.once("seal-key", "new", "--id", "one", keys), 0)
        sealed = f"sqlite:{self.dir}/once.db?seal={keys}"
        postgresql = ["--store", "postgresql://localhost/pay"]
        table = ["--store", "dynamodb://jobs"]
        places = {}

        def place(what, *arguments, cwd=None, **env):
            options = {"env": self.env | env}
            done = subprocess.run([harness.PROGRAM, "serve", "--print-socket", *arguments], cwd=cwd or self.dir, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
            found = self.socket_of(done)
            self.assertNotIn(found, places, f"{what} and {places.get(found)}")
            places[found] = what
            return found

        self.path("below").mkdir()
        place("the usual one")
        place("another file", "--store", f"sqlite:{self.dir}/other.db")
        place("an option of the URL", "--store", f"{self.store}?busy_timeout=1s")
        place("an offload", "--offload", f"file:{self.dir}/large")
        place("no offload", "--offload", "none")
        place("a relative file", "--store", "sqlite:once.db")
        place("the same words below", "--store", "sqlite:once.db", cwd=self.path("below"))
        place("a relative offload", "--offload", "large")
        place("the same offload below", "--offload", "large", cwd=self.path("below"))
        place("relative keys", "--store", f"sqlite:{self.dir}/once.db?seal=keys")
        place("sealed", "--store", sealed)
        self.expect(self.once("seal-key", "new", "--id", "two", keys), 0)
        place("sealed with more keys", "--store", sealed)
        place("a server", *postgresql)
        for name, value in (("PGHOST", "db2"), ("PGOPTIONS", "-csearch_path=x"), ("PGPASSWORD", "secret"), ("PGSSLROOTCERT", "ca.pem"),
                            ("HOME", "/nowhere")):
            place(f"a server, {name}", *postgresql, **{name: value})
        place("a server, PGSSLROOTCERT elsewhere", *postgresql, cwd=self.path("below"), PGSSLROOTCERT="ca.pem")
        service = self.path("services")
        for content in ("[pay]\nhost=a\n", "[pay]\nhost=b\n"):
            service.write_text(content)
            place(f"a server, {content}", *postgresql, PGSERVICEFILE=str(service))
        place("a table", *table)
        for name, value in (("AWS_REGION", "eu-west-1"), ("AWS_PROFILE", "pay"), ("AWS_ACCESS_KEY_ID", "x")):
            place(f"a table, {name}", *table, **{name: value})
        place("a table of a proxy", "--store", f"{self.store}?offload=s3://bucket/large", AWS_REGION="eu-west-1")
        # What does not decide it.
        usual = self.place()
        self.assertEqual(places[usual], "the usual one")
        for env in ({"PGHOST": "x", "AWS_REGION": "y", "LANG": "z"}, {"ONCE_STORE": "", "XDG_STATE_HOME": "/"}):
            self.assertEqual(self.place("--store", self.store, env=self.env | env), usual)
        self.assertEqual(self.place("--store", self.store, env=dict(self.env, HOME="/nowhere")), usual)

    def test_nobody_can_try_passwords_on_a_name(self):
        self.place()
        key = self.runtime / "once/key"
        self.assertEqual((stat.S_IMODE(key.stat().st_mode), key.stat().st_size), (0o600, 32))
        first = self.place()
        key.write_bytes(b"cut")  # As a crash leaves it.
        second = self.place()
        self.assertNotEqual(second, first)
        self.assertEqual(self.place(), second)
        self.assertEqual(sorted(each.name for each in (self.runtime / "once").iterdir()), ["key"])

    def test_a_server_in_a_relative_file_stays_where_it_was_started(self):
        path = self.up("--store", "sqlite:once.db")
        self.assertEqual(os.readlink(f"/proc/{self.pid_of(path)}/cwd"), str(self.dir))
        self.complete(path, self.claim(path, "a"))
        self.assertEqual(self.show("a")["state"], "completed")


class Folders(OnDemandCase):
    def without(self, *names, **more):
        return {name: value for name, value in self.env.items() if name not in names} | more

    def mode(self, path):
        return stat.S_IMODE(path.stat().st_mode)

    def test_the_folder_is_of_this_user_only(self):
        path = self.place(umask=0o777)
        self.assertEqual((path.parent, self.mode(path.parent)), (self.runtime / "once", 0o700))
        for mode in (0o755, 0o770, 0o701):
            path.parent.chmod(mode)
            self.expect(self.demand(), 243, stderr=f"mode is {mode:04o}".encode())
        path.parent.rename(self.path("away"))
        self.path("away").chmod(0o700)
        path.parent.symlink_to(self.path("away"))
        self.expect(self.demand(), 243, stderr=str(path.parent).encode())

    def test_a_fallback_is_used_where_there_is_no_runtime_directory(self):
        user = pathlib.Path(f"/run/user/{os.geteuid()}")
        own = user.is_dir() and user.stat().st_uid == os.geteuid()
        fallback = user / "once" if own else self.dir / f"once-{os.geteuid()}"
        self.runtime.chmod(0o777)  # Of others too, as in a container that was put together wrongly.
        for env in (self.without("XDG_RUNTIME_DIR"), dict(self.env, XDG_RUNTIME_DIR="run"), self.env,
                    dict(self.env, XDG_RUNTIME_DIR=str(self.dir / "missing")), self.without("XDG_RUNTIME_DIR", "HOME")):
            self.assertEqual(self.place(env=env).parent, fallback)
        if own:
            return
        self.assertEqual(self.mode(fallback), 0o700)
        self.dir.chmod(0o777)  # Others could put their own folder there.
        self.expect(self.demand(), 243, stderr=b"set XDG_RUNTIME_DIR")
        self.dir.chmod(0o1777)
        self.assertEqual(self.place().parent, fallback)
        fallback.chmod(0o755)
        self.expect(self.demand(), 243, stderr=b"mode is 0755")

    def test_a_long_name_does_not_fit_into_a_sockets_address(self):
        long = self.path("x" * 80)
        long.mkdir(0o700)
        path = self.place(env=dict(self.env, XDG_RUNTIME_DIR=str(long), TMPDIR=str(long)))
        self.assertNotIn(str(long), str(path))
        self.assertLessEqual(len(str(path)), 107)


# Other users are there only for root.
if os.geteuid() == 0:
    class Users(OnDemandCase):
        OTHER = 54_321

        def test_the_folder_of_another_user_is_refused(self):
            folder = self.place().parent
            os.chown(folder, self.OTHER, self.OTHER)
            self.expect(self.demand(), 243, stderr=f"belongs to user {self.OTHER}".encode())

        def test_the_runtime_directory_of_another_user_is_not_used(self):
            os.chown(self.runtime, self.OTHER, self.OTHER)  # As `su` leaves it.
            self.assertNotEqual(self.place().parent.parent, self.runtime)

        def test_the_server_of_another_user_is_refused(self):
            path = self.place()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
                server.bind(str(path))
                path.chmod(0o777)
                pid = os.fork()
                if pid == 0:  # Who listens counts, not who has made it.
                    os.setuid(self.OTHER)
                    server.listen()
                    signal.pause()
                self.addCleanup(os.waitpid, pid, 0)
                self.addCleanup(os.kill, pid, signal.SIGKILL)
                wait_until(lambda: self.listens(path), "it listens")
                self.expect(self.demand(), 243, stderr=f"belongs to user {self.OTHER}".encode())

        @staticmethod
        def listens(path):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                return client.connect_ex(str(path)) == 0

        def test_another_user_is_not_answered(self):
            path = self.up()
            for each in (self.dir, self.runtime, path.parent, path):
                each.chmod(0o777)
            self.assertIn(b"200", self.answer(path, 0))
            self.assertEqual(self.answer(path, self.OTHER), b"")

        @staticmethod
        def answer(path, user):
            """To a request of this user."""
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.setuid(user)
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                    client.connect(str(path))
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: once\r\n\r\n")
                        os.write(write, client.recv(100))
                os._exit(0)
            os.close(write)
            with open(read, "rb") as answer:
                got = answer.read()
            if os.waitpid(pid, 0)[1] != 0:
                raise AssertionError("it could not ask")
            return got


if __name__ == "__main__":
    harness.main()
