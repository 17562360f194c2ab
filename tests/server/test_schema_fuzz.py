"""Schemathesis sends what the description of the API allows, and what it does not: no answer is an error of ours.

With `VLHMM_FUZZ_JSON=FILE` what was answered is written there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import serving, small_lm

CASES = 5000
SEED = 0
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.schema_fuzz
@pytest.mark.skipif(not importlib.util.find_spec("schemathesis"), reason="schemathesis is not installed")
def test_no_request_is_answered_with_an_error_of_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = {"max_tokens": 32, "max_texts": 16, "max_length": 200, "max_total_length": 500, "request_seconds": 60.0}
    limits |= {"constraint_seconds": 0.1, "lookahead_seconds": 0.2}
    with serving(small_lm(carry=True), **limits) as one:
        command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"{one.url}/openapi.json"]
        command += [
            "--phases",
            "examples,coverage,fuzzing",
            "--mode",
            "all",
            "--max-examples",
            "450",
            "--seed",
            str(SEED),
        ]
        command += ["--checks", CHECKS, "--continue-on-failure", "--workers", "2", "--no-color"]
        command += ["--suppress-health-check", "all", "--request-timeout", "70"]
        begun = time.monotonic()
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        seconds = time.monotonic() - begun
        metrics = one.get("/metrics").text
    # Where it cannot make data of a schema by all of its ways, the exit status says so too: what counts are the answers.
    made = re.search(r"(\d+) generated, (\d+) passed$", ran.stdout, re.MULTILINE)
    assert made is not None, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert made[1] == made[2], ran.stdout[-8000:]
    answered: dict[str, int] = {}
    by_path: dict[str, dict[str, int]] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "vlhmm_http_requests_total":
                status = sample.labels["status"]
                answered[status] = answered.get(status, 0) + int(sample.value)
                of_path = by_path.setdefault(sample.labels["path"], {})
                of_path[f"{status[0]}xx"] = of_path.get(f"{status[0]}xx", 0) + int(sample.value)
    print(made[0], answered)
    assert int(made[1]) >= CASES
    assert not [status for status in answered if status >= "500"]
    assert answered["200"] > CASES / 10
    assert not caplog.records
    if file := os.environ.get("VLHMM_FUZZ_JSON"):
        revision = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        )
        command[0], command[2] = "schemathesis", "http://127.0.0.1:PORT/openapi.json"
        record = {
            "command": "pytest -m schema_fuzz tests/server/test_schema_fuzz.py",
            "schemathesis": {"version": version("schemathesis"), "command": " ".join(command), "seed": SEED},
            "commit": revision.stdout.strip(),
            "device": "cpu",
            "seconds": round(seconds, 1),
            "cases": {"generated": int(made[1]), "passed": int(made[2])},
            "answers": answered,
            "answers_by_endpoint": {path: dict(sorted(of.items())) for path, of in sorted(by_path.items())},
        }
        Path(file).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
