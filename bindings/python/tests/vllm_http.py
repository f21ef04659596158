# SPDX-License-Identifier: Apache-2.0
"""vLLM's HTTP server on libattn, with concurrent requests: tokens equal to those of vLLM's own backend.

    python tests/vllm_http.py [--model llama] [--flag | --override]

Needs vllm and transformers; without them it says so and passes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import vllm_models
import vllm_tokens


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def post(port: int, path: str, body: Any, timeout: float) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        text = reply.read()
    return json.loads(text) if text else None


def wait_for(server: subprocess.Popen[bytes], port: int, log: Path, limit: float) -> None:
    end = time.time() + limit
    while time.time() < end:
        if server.poll() is not None:
            break
        try:
            post(port, "/health", None, 5)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise SystemExit(f"the server did not come up (status {server.poll()}):\n{log.read_text()[-6000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="llama", choices=vllm_models.MODELS)
    parser.add_argument("--override", action="store_true", help="LIBATTN_VLLM=override, not the flag")
    parser.add_argument("--limit", type=float, default=900, help="seconds for the server to come up")
    parser.add_argument("--folder", type=Path, help="keeps the model here")
    args = parser.parse_args()
    if vllm_tokens.is_missing():
        return 0
    vllm_tokens.environment()
    print("1..2", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        model = vllm_models.make(args.model, args.folder or Path(scratch))
        options = argparse.Namespace(
            dtype="float32", kv_cache_dtype="auto", max_num_batched_tokens=128, tokens=24, seed=1
        )
        own, _ = vllm_tokens.run(model, None, options)
        prompts = vllm_tokens.prompts(1)
        port, log = free_port(), Path(scratch) / "log"
        flag = [] if args.override else ["--attention-backend", "CUSTOM"]
        mode = {"LIBATTN_VLLM": "override"} if args.override else {}
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *flag]
        command += ["--port", str(port), "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"]
        command += ["--max-model-len", "512", "--max-num-seqs", "4", "--max-num-batched-tokens", "128"]
        command += ["--skip-tokenizer-init", "--enable-scale-out", "--served-model-name", "model"]
        env = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        with log.open("wb") as out:
            server = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env={**env, **mode}, start_new_session=True
            )
        try:
            wait_for(server, port, log, args.limit)

            def ask(prompt: list[int]) -> list[int]:
                params = {"temperature": 0, "max_tokens": 24, "detokenize": False, "ignore_eos": True}
                body = {"model": "model", "token_ids": prompt, "sampling_params": params}
                tokens: list[int] = post(port, "/inference/v1/generate", body, 600)["choices"][0]["token_ids"]
                return tokens

            with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
                answers = list(pool.map(ask, prompts))
        finally:
            server.terminate()
            server.wait(120)
        equal = sum(list(a.token_ids) == b for a, b in zip(own, answers))
        print(f"{'ok' if equal == len(prompts) else 'not ok'} 1 - {equal} of {len(prompts)} requests equal")
        served = "serves" in log.read_text() and "libattn: " in log.read_text()
        print(f"{'ok' if served else 'not ok'} 2 - the server's log says that libattn serves the layers")
        for line in log.read_text().splitlines():
            if "libattn: " in line:
                print("# " + line)
    return not (served and equal == len(prompts))


if __name__ == "__main__":
    sys.exit(main())
