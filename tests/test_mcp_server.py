"""The server for coding agents, spoken to over stdio by the client of the same package."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from modelscope_cli import mcp_server

pytest.importorskip("mcp")
SAMPLES = Path(__file__).parents[1] / "samples"
STAR, SICK = str(SAMPLES / "star.png"), str(SAMPLES / "sick.safetensors")
NOISY = """
import os
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        print("hello")  # must not reach the protocol
"""
CALLS = {
    "healthy": ("check", {"model": "net.py:Net", "input_shape": "2,4"}),
    "sick": ("stats", {"model": f"{SAMPLES}/tiny_resnet.py:TinyResNet", "inputs": [STAR], "checkpoint": SICK}),
    "json": ("scan", {"path": SICK, "detail": "json"}),
    "wrong": ("stats", {"model": "resnet35"}),
    "writes": ("stats", {"model": "net.py:Net", "input_shape": "2,4", "out": "run"}),
    "changes": ("stats", {"model": "net.py:Net", "input_shape": "2,4", "hook": "zero@0"}),
    "runs": ("watch", {"what": "train.py"}),
}  # fmt: skip


async def converse(folder):
    """Return the tools and the answer to each call."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    line = ["-m", "modelscope_cli.mcp_server"]
    server = StdioServerParameters(command=sys.executable, args=line, cwd=folder)
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        answers = {}
        for name, (tool, given) in CALLS.items():
            answer = await session.call_tool(tool, given)
            answers[name] = (answer.is_error, answer.content[0].text)
        return tools, answers


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    (folder / "net.py").write_text(NOISY)
    (folder / "train.py").write_text("import pathlib; pathlib.Path('trained').touch()")
    return folder, *asyncio.run(converse(folder))


def test_tools_have_the_keywords_of_the_functions(talk):
    _, tools, _ = talk
    assert {*tools} == {*mcp_server._READING.split()}
    given = tools["stats"].input_schema
    assert {"model", "inputs", "layer", "checkpoint", "input_shape", "detail"} <= given["properties"].keys()
    assert not {"out", "plot", "hook", "progress"} & given["properties"].keys()
    assert tools["summary"].input_schema["required"] == ["model"]
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    assert tools["stats"].description.startswith("Return")


def test_answers_are_brief_or_json(talk):
    _, _, answers = talk
    assert not answers["healthy"][0]
    assert "nothing found" in answers["healthy"][1]
    assert "dead channels" in answers["sick"][1]
    assert len(answers["sick"][1].splitlines()) <= 40
    assert json.loads(answers["json"][1])["files"]


def test_errors_have_their_hint(talk):
    _, _, answers = talk
    is_error, text = answers["wrong"]
    assert is_error
    assert "resnet34" in text
    assert "hint" in text


def test_nothing_is_written(talk):
    folder, _, answers = talk
    assert answers["writes"][0]
    assert answers["changes"][0]
    assert answers["runs"][0]
    assert {path.name for path in folder.iterdir()} == {"net.py", "train.py"}


def test_writing_is_offered_on_request(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import pathlib; pathlib.Path('trained').touch()")
    server = mcp_server.make_server(allow_writes=True)
    tools = {tool.name: tool for tool in asyncio.run(server.list_tools())}
    assert not tools["watch"].annotations.read_only_hint
    answer = asyncio.run(server.call_tool("watch", {"what": "train.py", "out": "run"}))
    assert "never trained" in answer.content[0].text
    assert (tmp_path / "trained").exists()


def test_without_the_package_it_says_what_to_install():
    code = "import sys; sys.modules['mcp'] = None; from modelscope_cli.mcp_server import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("hint: pip install 'modelscope-cli[mcp]'\n")
