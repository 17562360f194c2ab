"""Schemathesis sends what the description of the API allows, and what it does not: no answer is an error of ours."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import serving, small_lm

CASES = 5000
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.schema_fuzz
@pytest.mark.skipif(not importlib.util.find_spec("schemathesis"), reason="schemathesis is not installed")
def test_no_request_is_answered_with_an_error_of_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = {"max_tokens": 32, "max_texts": 16, "max_length": 200, "max_total_length": 500, "request_seconds": 60.0}
    with serving(small_lm(carry=True), **limits) as one:
        command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"{one.url}/openapi.json"]
        command += ["--phases", "examples,coverage,fuzzing", "--mode", "all", "--max-examples", "450", "--seed", "0"]
        command += ["--checks", CHECKS, "--continue-on-failure", "--workers", "2", "--no-color"]
        command += ["--suppress-health-check", "all", "--request-timeout", "70"]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        metrics = one.get("/metrics").text
    # Where it cannot make data of a schema by all of its ways, the exit status says so too: what counts are the answers.
    made = re.search(r"(\d+) generated, (\d+) passed$", ran.stdout, re.MULTILINE)
    assert made is not None, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert made[1] == made[2]
    answered: dict[str, int] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "vlhmm_http_requests_total":
                status = sample.labels["status"]
                answered[status] = answered.get(status, 0) + int(sample.value)
    print(made[0], answered)
    assert int(made[1]) >= CASES
    assert not [status for status in answered if status >= "500"]
    assert answered["200"] > CASES / 10
    assert not caplog.records
