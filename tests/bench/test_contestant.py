import subprocess
import sys
import textwrap
import time

import pytest

from bench import contestant as contestant_module
from bench.contestant import Contestant, ContestantFailed, NotInstalled, Process, cpu_seconds, rival, settle

HANDLER = """
import os, sys
sys.path.insert(0, {scripts!r})
from protocol import serve

class Handler:
    def load(self, request):
        print("libraries print what they like", flush=True)
        os.write(1, b"also past Python\\n")
        return {{"got": request["files"]}}

    def round(self, request):
        raise ValueError("cannot\\nsecond line")

    def outputs(self, request):
        os._exit(3)

serve(Handler())
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "contestant.py"
    path.write_text(textwrap.dedent(HANDLER.format(scripts=str(contestant_module.SCRIPTS))))
    return [sys.executable, str(path)]


def test_replies_are_apart_from_what_libraries_print(script):
    with Contestant("one", script) as one:
        one.load(files=["a", "b"])
        assert one.facts == {"got": ["a", "b"]}


def test_a_failed_request_is_one_line_and_the_contestant_lives_on(script):
    with Contestant("one", script) as one:
        with pytest.raises(ContestantFailed, match=r"^one: round: ValueError: cannot$"):
            one.ask("round")
        one.load(files=[])


def test_one_that_ends_is_named_with_its_last_words(script):
    with Contestant("one", script) as one:
        one.load(files=[])
        with pytest.raises(ContestantFailed, match="one: ended during outputs"):
            one.ask("outputs")
    command = [sys.executable, "-c", "import sys; sys.exit('no such library')"]
    with (
        Process("two", command) as two,
        pytest.raises(ContestantFailed, match="two: ended during start: no such"),
    ):
        two.read_line("start", 30)


def test_one_that_is_silent_is_given_up(monkeypatch):
    monkeypatch.setattr(contestant_module, "STOP_DEADLINE_S", 0.1)
    with (
        Process("deaf", [sys.executable, "-c", "import time; time.sleep(60)"]) as deaf,
        pytest.raises(ContestantFailed, match=r"deaf: no answer to start within 0\.1 s"),
    ):
        deaf.read_line("start", 0.1)


def test_a_rival_without_environment_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(contestant_module, "RIVALS_FOLDER", tmp_path)
    with pytest.raises(NotInstalled, match="OpenCV: not installed; `make rivals`"):
        rival("OpenCV", "opencv", "decode_opencv.py")


def test_a_command_that_is_no_program():
    with pytest.raises(ContestantFailed, match="cannot start"):
        Process("nobody", ["/no/such/python"])


def test_settle_waits_for_rest_only(script):
    with Contestant("one", script) as one:
        one.load(files=[])
        settle([one.pid])
        assert cpu_seconds(one.pid) > 0
    busy = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with Process("busy", busy) as two:
        two.read_line("start", 30)
        with pytest.raises(ContestantFailed, match="still busy"):
            settle([two.pid], deadline_s=0)
        two.terminate()


def test_a_frozen_process_does_nothing_until_it_is_thawed(script):
    busy = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with Process("busy", busy) as one:
        one.read_line("start", 30)
        one.freeze()
        settle([one.pid])
        frozen_s = cpu_seconds(one.pid)
        one.thaw()
        while cpu_seconds(one.pid) < frozen_s + 0.05:
            time.sleep(0.01)
        one.terminate()
    with Contestant("two", script) as two:
        two.load(files=[])
        two.freeze()
    with pytest.raises(ProcessLookupError):
        cpu_seconds(two.pid)  # it ended, frozen or not


def is_there(pid):
    try:
        return cpu_seconds(pid) >= 0
    except ProcessLookupError:
        return False


ORPHAN = """
import os, signal, sys
sys.path.insert(0, {root!r})
from bench.contestant import rival
one = rival("one", None, "service_feeder.py", "--cores", "0", "--variant", "client")
try:
    one.ask("outputs")
except Exception:
    pass
one.freeze()
print(one.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_frozen_contestant_ends_with_a_bench_that_is_killed():
    root = str(contestant_module.SCRIPTS.parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN.format(root=root)], capture_output=True, timeout=60, check=False
    )
    pid, until_s = int(done.stdout), time.monotonic() + 30
    while is_there(pid):
        assert time.monotonic() < until_s
        time.sleep(0.05)
