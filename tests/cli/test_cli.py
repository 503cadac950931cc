"""The command line: its exit codes, its one-line errors, and the commands around the service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image

import feeder
from feeder import cli
from feeder.cli import main, status
from feeder.cli.sheet import label_names, save_sheet
from feeder.errors import ConfigError, StorageError
from feeder.wire import SERVICE
from feeder.wire.v1 import feeder_pb2 as pb

COMMANDS = ["pack", "synth", "index", "verify", "preview", "worker", "status", "bench", "train"]
Out = pytest.CaptureFixture[str]


def exits(*arguments: str) -> int:
    """The exit code of a command line that argparse itself ends."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def error_line(capsys: Out, *arguments: str) -> str:
    """Runs a command that must fail; returns its one line."""
    assert main(arguments) == cli.EXIT_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("feeder: error: ")
    return line


def test_version(capsys: Out) -> None:
    assert exits("--version") == 0
    assert capsys.readouterr().out.startswith(f"feeder {feeder.__version__}, n")


def test_help_names_all_commands(capsys: Out) -> None:
    assert exits("--help") == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n    {command} " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_examples(capsys: Out, command: str) -> None:
    assert exits(command, "--help") == 0
    assert f"feeder {command} " in capsys.readouterr().out.partition("examples:")[2]


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["status"], ["worker", "--threads", "x"]])
def test_wrong_usage(capsys: Out, arguments: list[str]) -> None:
    assert exits(*arguments) == 2
    assert "usage: feeder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["worker"], ["status", "h:1"], ["cache", "drop"], ["config", "show"], ["doctor", "h:1"]]
)
def test_a_mistyped_flag_shows_the_usage_of_its_command(capsys: Out, command: list[str]) -> None:
    assert exits(*command, "--thraeds", "8") == 2
    said = capsys.readouterr().err
    words = [word for word in command if ":" not in word]
    assert said.startswith(f"usage: feeder {' '.join(words)} ")
    assert f"feeder {' '.join(words)}: error: " in said
    assert "--thraeds" in said


def test_help_imports_nothing_heavy() -> None:
    """A client's environment has no Pillow and no pyarrow, and help shall be quick."""
    code = (
        "import sys\n"
        "from feeder.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'numpy', 'grpc', 'PIL', 'pyarrow', 'jax', 'google.protobuf'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(feeder.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def raising(error: BaseException) -> Callable[..., int]:
    def run(_: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("bad flag"), 2, "feeder: error: bad flag\n"),
        (StorageError("disk"), 2, "feeder: error: disk\n"),
        (KeyboardInterrupt(), 130, "feeder: interrupted\n"),
        (
            ModuleNotFoundError("No module named 'PIL'", name="PIL.Image"),
            2,
            "feeder: error: this command needs PIL, which is not installed here; from a checkout of feeder: "
            "pip install '.[worker]'\n",
        ),
        (
            ModuleNotFoundError("No module named 'jax'", name="jax"),
            2,
            "feeder: error: this command needs jax, which is not installed here; from a checkout of feeder: "
            "pip install '.[trainer]'\n",
        ),
        (
            ImportError("libjpeg.so.62: cannot open shared object file", path="/venv/_kernel.so"),
            2,
            "feeder: error: cannot load /venv/_kernel.so, which is compiled: libjpeg.so.62: cannot open "
            "shared object file; `make system` in a checkout of feeder installs the libraries on Debian and "
            "Ubuntu, docs/deployment.md lists them\n",
        ),
    ],
)
def test_errors_are_one_line(
    capsys: Out, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    monkeypatch.setattr(status, "_status", raising(error))
    assert main(["status", "a:1"]) == code
    assert capsys.readouterr().err == message


def test_faults_of_ours_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "_status", raising(ModuleNotFoundError("x", name="feeder.nothing")))
    with pytest.raises(ModuleNotFoundError):
        main(["status", "a:1"])


def test_status_says_how_long_threads_waited_as_a_share(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    for counters, said in [
        (pb.Counters(read_s=1.0, decode_s=2.0, idle_s=6.0), "waited for requests 75 % of their time\n"),
        (pb.Counters(), "making chunks 0.0 s (sums over threads)\n"),
    ]:
        reply = pb.DescribeReply(uptime_s=2.0, threads=1, counters=counters)
        monkeypatch.setattr(status, "describe", lambda *_, reply=reply: reply)
        assert main(["status", "a:1"]) == 0
        assert said in capsys.readouterr().out


def test_a_reader_that_goes_away_is_no_error() -> None:
    """`feeder --help | head -0` and the like."""
    environment = os.environ | {"PYTHONPATH": str(Path(feeder.__file__).parent.parent)}
    command = [sys.executable, "-m", "feeder", "status", "unix:/no/such/socket", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "d=x", "--listen", "nonsense"], "'nonsense' is no address"),
        (["--dataset", "d=x", "--listen", "dns:a:1"], "cannot listen on 'dns:a:1'"),
        (["--dataset", "d=x", "--listen", "a:0", "--threads", "0"], "--threads must be in [1, "),
        (["--dataset", "d=x", "--listen", "a:0", "--max-streams", "0"], "--max-streams must be in [1, "),
        (["--dataset", "d=x", "--listen", "a:0", "--max-streams-per-job", "0"], "-per-job must be in [1, "),
        (
            ["--dataset", "d=x", "--listen", "a:0", "--share-bytes", "5%"],
            "--share-bytes is a number of bytes",
        ),
        (["--dataset", "d=x", "--listen", "a:0", "--drain-s", "-1"], "--drain-s must be in [0, "),
        (["--dataset", "d=x", "--listen", "a:0", "--drain-s", "nan"], "--drain-s must be in [0, "),
        (["--dataset", "d", "--listen", "a:0"], "--dataset wants NAME=PATTERN"),
        (["--dataset", "=x", "--listen", "a:0"], "--dataset wants NAME=PATTERN"),
        (["--dataset", "d=", "--listen", "a:0"], "--dataset wants NAME=PATTERN"),
    ],
)
def test_worker_settings_are_checked(capsys: Out, arguments: list[str], message: str) -> None:
    assert message in error_line(capsys, "worker", *arguments)


DESCRIBED = pb.DescribeReply(
    version="9.9.9",
    worker_id="host:1:ab",
    threads=2,
    decoder="portable (some)",
    pixel_fingerprint="portable-123",
    datasets=[pb.DatasetInfo(name="train", records=1281167, shards=1024, fingerprint="ab" * 32, bytes=2**40)],
    live_streams=3,
    max_streams=64,
    counters=pb.Counters(images=10_000, chunks=625, bytes_sent=1_505_280_000, bad_records=2),
    uptime_s=100.0,
    quarantine=[pb.BadRecordInfo(dataset="train", record=7, shard="train-0", index=7, reason="crc")],
    pixel_digests={"plain": "ab"},
    stages=[
        pb.StageInfo(name="make", chunks=100, total_s=2.0, bounds_s=[0.01, 0.1], buckets=[90, 9, 1]),
        pb.StageInfo(name="send", bounds_s=[0.01, 0.1], buckets=[0, 0, 0]),
    ],
    streams=[
        pb.StreamInfo(
            job="night",
            session="0123456789abcdef",
            consumer_index=1,
            consumer_count=2,
            peer="ipv4:10.0.0.7:41",
            arena=True,
            spec=pb.Spec(dataset="train", seed=7),
            chunks=300,
            images=9000,
            owed=4,
            epoch=5,
            age_s=60.5,
            report=pb.ClientReport(
                steps=900, step_s=30.0, wait_s=10.0, ready=3, prefetch=4, substituted=3, workers=2
            ),
        )
    ],
)


@pytest.fixture
def serve() -> Iterator[Callable[[pb.DescribeReply], str]]:
    """Starts servers that answer Describe; returns their addresses."""
    started: list[tuple[grpc.Server, ThreadPoolExecutor]] = []

    def start(reply: pb.DescribeReply) -> str:
        pool = ThreadPoolExecutor(1)
        server = grpc.server(pool)
        handler = grpc.unary_unary_rpc_method_handler(
            lambda request, context: reply,
            request_deserializer=pb.DescribeRequest.FromString,
            response_serializer=pb.DescribeReply.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Describe": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        started.append((server, pool))
        return f"127.0.0.1:{port}"

    yield start
    for server, pool in started:
        server.stop(None).wait()
        pool.shutdown()


def test_status_as_text(capsys: Out, serve: Callable[[pb.DescribeReply], str]) -> None:
    address = serve(DESCRIBED)
    assert main(["status", address]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{address}: feeder 9.9.9, host:1:ab, up 100 s\n")
    for part in (
        "portable (some), 2 threads",
        "3 of 64",
        "10,000 images in 625 chunks, 1.51 GB, 100 images/s",
        "1,281,167",
        "1,024",
        "1.1 TB",
        "abababababab",
        "train: train-0: record 7: crc",
        "make 20 ms / 100 ms, send - (mean",
        "job 'night', consumer 1 of 2, train, ipv4:10.0.0.7:41, into its memory, session 0123456789ab\n",
        "9,000 images in 300 chunks, 4 asked and not answered, epoch 5, for 60 s",
        "waited for input 25.0 % of its time in 900 steps; 3 of 4 batches ready",
        "0 slots masked, 3 substituted; 0 requests hedged, 0 retried; 2 workers",
    ):
        assert part in text
    assert "DRAINING" not in text


def test_status_as_json(capsys: Out, serve: Callable[[pb.DescribeReply], str]) -> None:
    addresses = [serve(DESCRIBED), serve(DESCRIBED)]
    assert main(["status", ",".join(addresses), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["address"] for line in lines] == addresses
    assert lines[0]["counters"]["images"] == 10_000
    assert lines[0]["datasets"][0]["records"] == 1281167
    assert lines[0]["quarantine"][0]["record"] == 7
    assert lines[0]["draining"] is False
    assert lines[0]["pixel_digests"] == {"plain": "ab"}
    assert lines[0]["stages"][0]["buckets"] == [90, 9, 1]
    assert lines[0]["streams"][0]["images"] == 9000
    assert lines[0]["streams"][0]["spec"]["seed"] == 7
    assert lines[0]["streams"][0]["report"]["substituted"] == 3


def test_status_of_workers_that_disagree(capsys: Out, serve: Callable[[pb.DescribeReply], str]) -> None:
    other = pb.DescribeReply()
    other.CopyFrom(DESCRIBED)
    other.datasets[0].fingerprint = "cd" * 32
    assert main(["status", f"{serve(DESCRIBED)},{serve(other)}"]) == cli.EXIT_FOUND_BAD
    assert "another fingerprint of 'train' than a worker above" in capsys.readouterr().err


def test_status_of_nobody(capsys: Out, tmp_path: Path) -> None:
    assert main(["status", f"unix:{tmp_path}/none.sock", "--json"]) == cli.EXIT_FOUND_BAD
    line = json.loads(capsys.readouterr().out)
    assert line["error"].endswith("does not answer (no such file or directory)")
    assert "is no address" in error_line(capsys, "status", "nonsense")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 6 plain images in two classes, red and blue, and their labels.json."""
    root = tmp_path_factory.mktemp("preview")
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (root / "photos" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (60, 40), colour).save(root / "photos" / name / f"{number}.jpg")
    assert main(["pack", str(root / "photos"), str(root / "shards"), "--shards", "2"]) == 0
    return root / "shards"


@pytest.mark.parametrize(
    ("augment", "pixels"), [("train", "rgb"), ("eval", "rgb"), ("none", "rgb"), ("train", "yuv420")]
)
def test_preview_of_shards(capsys: Out, shards: Path, tmp_path: Path, augment: str, pixels: str) -> None:
    sheet = tmp_path / "sheet.png"
    size = ["--image-size", "32", "--images", "6", "--augment", augment, "--pixels", pixels]
    assert main(["preview", "--data", str(shards), "-o", str(sheet), *size]) == 0
    assert "sheet.png: 6 images" in capsys.readouterr().out
    with Image.open(sheet) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    assert pixels.shape[1] > 3 * 32
    assert pixels.shape[0] > 2 * 32
    for colour in ((200, 0, 0), (0, 0, 200)):
        near = (np.abs(pixels - colour) < 20).all(axis=2)
        assert near.sum() == pytest.approx(3 * 32 * 32, rel=0.05)


def test_preview_asks_workers(monkeypatch: pytest.MonkeyPatch, capsys: Out, tmp_path: Path) -> None:
    """Through feeder.connect; what it gives is shown without the masked slots."""
    batch = SimpleNamespace(
        images=np.zeros((4, 32, 32, 3), np.uint8),
        labels=np.arange(4, dtype=np.int32),
        mask=np.array([True, True, False, True]),
    )
    asked: dict[str, Any] = {}

    served = {address: SimpleNamespace(datasets={"train": None}) for address in ("a:1", "b:1")}

    class Client:
        workers = served

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

        def stream(self, dataset: str, **settings: Any) -> Any:
            asked.update(settings, dataset=dataset)
            return self

        def __iter__(self) -> Iterator[Any]:
            return iter([batch])

    monkeypatch.setattr(feeder, "connect", lambda target, credentials: Client(), raising=False)
    sheet = tmp_path / "sheet.png"
    command = ["preview", "--connect", "a:1", "-o", str(sheet), "--images", "4"]
    assert main([*command, "--dataset", "other"]) == 0
    assert "3 images of the 4 asked for" in capsys.readouterr().out
    assert asked["dataset"] == "other"
    assert asked["batch_size"] == 4
    assert main(command) == 0
    assert asked["dataset"] == "train"
    capsys.readouterr()
    served["b:1"].datasets["val"] = None
    assert "say which data set with --dataset: the workers serve train, val" in error_line(capsys, *command)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "{}", "--dataset", "d"], "--dataset goes with --connect"),
        (["--data", "{}", "--images", "0"], "--images must be in [1, 1024], got 0"),
        (["--data", "{}", "--image-size", "0"], "image_size must be in [1, 4096]"),
        (["--data", "{}", "--image-size", "33", "--pixels", "yuv420"], "needs an even image_size, got 33"),
        (["--data", "{}/nothing-*"], "nothing-*"),
    ],
)
def test_preview_errors(
    capsys: Out, shards: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    given = [argument.format(shards) for argument in arguments]
    assert message in error_line(capsys, "preview", *given, "-o", str(tmp_path / "sheet.png"))
    assert list(tmp_path.iterdir()) == []


def test_a_sheet_that_cannot_be_written(tmp_path: Path) -> None:
    images = np.zeros((1, 8, 8, 3), np.uint8)
    with pytest.raises(ConfigError, match="cannot write"):
        save_sheet(tmp_path / "no" / "folder.png", images, ["a"])
    with pytest.raises(ConfigError, match="nothing to show"):
        save_sheet(tmp_path / "sheet.png", images[:0], [])


@pytest.mark.parametrize("output", [".", "{}", "{}/file/x.png", "{}/" + "x" * 300])
def test_odd_outputs_of_preview(capsys: Out, shards: Path, tmp_path: Path, output: str) -> None:
    (tmp_path / "file").touch()
    arguments = ["--data", str(shards), "--images", "2", "-o", output.format(tmp_path)]
    assert "cannot write" in error_line(capsys, "preview", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_preview_names_classes(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("feeder.cli.sheet.save_sheet", lambda path, images, captions: shown.extend(captions))
    assert main(["preview", "--data", str(shards), "-o", str(tmp_path / "x.png"), "--images", "6"]) == 0
    assert sorted(shown) == ["blue"] * 3 + ["red"] * 3


def test_names_of_data_sets_are_checked(capsys: Out) -> None:
    for name, said in (("\udcff", "printable text"), ("a\nb", "printable text")):
        assert said in error_line(capsys, "worker", "--listen", "127.0.0.1:0", "--dataset", f"{name}=x")


def test_label_base_is_not_negative(capsys: Out) -> None:
    assert exits("worker", "--listen", "127.0.0.1:0", "--dataset", "a=x", "--label-base=-1") == 2
    assert "must be a number from 0 on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("unbuffered", "said"), [("", "cannot write the output"), ("1", "cannot read or write")]
)
def test_a_full_disk_behind_stdout_is_one_line(shards: Path, unbuffered: str, said: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "feeder", "index", str(shards)],
            stdout=full,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == cli.EXIT_ERROR
    assert done.stderr == f"feeder: error: {said}: No space left on device\n"


def test_errors_of_the_system_are_one_line(
    capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = f"{tmp_path}/{'x' * 300}"
    assert "name too long" in error_line(capsys, "index", long)
    assert "no such folder" in error_line(capsys, "pack", long, str(tmp_path / "out"), "--shards", "1")

    def refuse(folder: object = ".") -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("feeder.records.shards.os.listdir", refuse)
    assert f"{tmp_path}: cannot read: Permission denied" in error_line(capsys, "index", str(tmp_path))


def test_captions_are_cut_to_fit(tmp_path: Path) -> None:
    save_sheet(tmp_path / "sheet.png", np.zeros((2, 20, 20, 3), np.uint8), ["x" * 500, "日本"])
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width < 100


def test_label_names(shards: Path, tmp_path: Path) -> None:
    assert sorted(label_names([str(shards)]).values()) == ["blue", "red"]
    assert label_names([str(shards / "train-*")]) == label_names([str(shards)])
    assert label_names([str(tmp_path)]) == {}
    (tmp_path / "labels.json").write_text("{nonsense")
    assert label_names([str(tmp_path)]) == {}


@pytest.mark.parametrize("option", ["--arena-dir", "--cache-dir", "--encoded-cache-dir", "--index-dir"])
def test_a_folder_without_a_name_is_refused(capsys: Out, option: str) -> None:
    with pytest.raises(SystemExit):
        main(["worker", "--dataset", "d=x", "--listen", "a:0", option, ""])
    assert f"argument {option}: must name a folder, got an empty string" in capsys.readouterr().err


def test_a_number_that_is_too_large(capsys: Out) -> None:
    assert exits("verify", "shards", "--limit", "9" * 30) == 2
    assert "argument --limit: must be" in capsys.readouterr().err


def test_files_of_credentials_without_a_name(capsys: Out) -> None:
    """Such as a variable that is not set: the token would go over the network without TLS."""
    for option in ("--tls-ca", "--tls-cert", "--tls-key", "--token-file"):
        assert exits("status", "127.0.0.1:1", option, "") == 2
        assert f"argument {option}: must name a file" in capsys.readouterr().err


def test_standard_files_that_are_closed() -> None:
    """Nothing else gets their numbers, and what is for stderr does not come on stdout."""
    look = "from feeder.cli import main; main(['token', 'new', 'a']); import os; "
    look += "os.write(9, ' '.join(os.readlink(f'/proc/self/fd/{n}') for n in range(3)).encode())"
    script = f'exec "{sys.executable}" -c "$1" 9>&1 <&- 2>&-'
    done = subprocess.run(
        ["bash", "-c", script, "bash", look], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    token, shown = done.stdout.splitlines()
    assert token.startswith("feeder_")
    first, _, third = shown.split(" ")
    assert first == third == os.devnull


def test_stdout_that_is_closed_or_takes_only_ascii() -> None:
    """Output goes nowhere, and what cannot be written comes as escapes."""
    command = f"exec \"{sys.executable}\" -c \"from feeder.cli import main; exit(main(['config', 'show', "
    command += "'--dataset', 'ü=/x']))\""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for end, shown in ((">&-", False), ("", True)):
        done = subprocess.run(
            ["bash", "-c", f"{command} {end}"], capture_output=True, text=True, timeout=60, env=environment
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert ("\\xfc" in done.stdout) == shown


def test_spans_of_time_that_cannot_be(capsys: Out) -> None:
    for option in ("--seconds", "--step-time"):
        for value in ("nan", "inf", "0", "-1", ""):
            assert exits("train", "--config", "tiny", f"{option}={value}") == 2
            assert f"argument {option}: must be a number above 0, got {value!r}" in capsys.readouterr().err
